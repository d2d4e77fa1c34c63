"""One module per command, each with its typer application as `app`. `cli.app.COMMANDS` lists them."""
