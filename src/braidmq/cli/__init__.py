"""The command `braidmq`: one module or package a command (`main.COMMANDS` lists them), and what they share.

    main, base_commands, option_groups, help_page   how commands are found, started and explained
    output, progress, topic_cell, errors, ending    what people see, exit codes, and how a command ends
    admin_port, on_spark                            how commands reach a broker's admin port, and Spark

A command is imported when it is asked for, so that all of them start quickly.
"""
