"""The commands of each subject as a typer application `app`. `cli.app.COMMANDS` says
which module a command is in.
"""
