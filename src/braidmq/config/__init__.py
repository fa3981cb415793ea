"""The broker's configuration: one TOML file, environment variables and flags over it, checked as a whole.

    settings          the structs, one a table of the file: `Config` holds them all
    load              `load` reads a configuration; a `ConfigError` (`problems`) tells all that is wrong with it
    check, log_check  what several values must be together
    reload            `reload_plan`: what of a new configuration holds at once, and what waits for a restart
    clients           who clients are and what they may do, made of a configuration
    braid_security    the same for other brokers
    naming            what a broker is called
    words, docs       what a value may be, in words, and the tables of docs/configuration.md made of them

Nothing is imported here: the structs are needed by layers that do not need the rest.
"""
