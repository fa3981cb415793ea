"""`python -m braidmq` is the command `braidmq`."""

from braidmq.cli.main import run

if __name__ == "__main__":
    run()
