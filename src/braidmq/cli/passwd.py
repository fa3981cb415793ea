"""`braidmq passwd`: the users in a password file, and their passwords."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError

app = typer.Typer(add_completion=False)

PASSWORD_BYTES_MAX: Final = 65_535
"""A longer one does not fit into CONNECT (MQTT 5 §3.1.3.6)."""

HELP: Final = (
    "Add a user to a password file, or change the password.\n\n"
    "The file has one user a line, with an argon2id hash. The broker reads it again on SIGHUP."
)
EXAMPLES: Final = output.examples(
    ("Add ada, or change her password; it is asked for twice", "braidmq passwd users.txt ada"),
    ("From a script", 'printf %s "$SECRET" | braidmq passwd users.txt ada --stdin'),
    ("Who is in the file?", "braidmq passwd users.txt --list"),
    ("Remove ada", "braidmq passwd users.txt ada --delete"),
    ("Use the file", "braidmq up --set authentication.password_file=users.txt"),
)


@app.command("passwd", help=HELP, epilog=EXAMPLES, no_args_is_help=True)
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file; made if it is not there.")],
    user: Annotated[str | None, typer.Argument(metavar="USER", help="The user's name.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from standard input.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the user.")] = False,
    list_users: Annotated[bool, typer.Option("--list", help="Show the users.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    if sum([stdin, delete, list_users]) > 1:
        raise UsageError("--stdin, --delete and --list are different things", "Choose one.")
    if list_users:
        if user is not None:
            raise UsageError(f"--list shows all users, not {user} alone", "Leave the name out.")
        _list(file, json_lines)
        return
    if user is None:
        raise UsageError("which user?", f"As in: braidmq passwd {file} ada")

    from braidmq.security.passwords import PasswordFileError, delete_user, set_password, user_problem

    try:
        if delete:
            delete_user(str(file), user)
            done = "deleted"
        else:
            if problem := user_problem(user):  # before anyone has typed a password in vain
                raise UsageError(f"the user name {user!r} cannot be used: {problem}")
            password = _from_stdin() if stdin else _ask(user)
            done = "added" if set_password(str(file), user, password) else "changed"
    except PasswordFileError as error:
        raise CliError(str(error)) from None
    if json_lines:
        output.print_json({"file": str(file), "user": user, "done": done})
    else:
        output.say(f"{user}: {done} in {file}.", "green")


def _list(file: Path, json_lines: bool) -> None:
    from braidmq.security.passwords import PasswordFileError, users

    try:
        names = users(str(file))
    except PasswordFileError as error:
        raise CliError(str(error)) from None
    if json_lines:
        output.print_json({"file": str(file), "users": names})
    else:
        for name in names:
            output.say(name)


def _from_stdin() -> bytes:
    """All of standard input, but for the newline at its end: `echo` adds one."""
    password = sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        raise UsageError("there is no password on standard input")
    return _checked(password)


def _ask(user: str) -> bytes:
    import getpass

    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked for the password here", "Use --stdin to read it from standard input.")
    password = getpass.getpass(f"Password of {user}: ")
    if not password:
        raise UsageError("the password is empty", "Choose one.")
    if getpass.getpass("Once more: ") != password:
        raise UsageError("the two are not the same", "Nothing was changed. Try again.")
    return _checked(password.encode())


def _checked(password: bytes) -> bytes:
    if len(password) > PASSWORD_BYTES_MAX:
        raise UsageError(f"the password is longer than {PASSWORD_BYTES_MAX} bytes", "MQTT cannot carry it.")
    return password
