"""Commands, each module with a typer application as `app`. `cli.app.COMMANDS` lists them."""
