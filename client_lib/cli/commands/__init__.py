"""One module per command, each with its click command under the name `command`. `app.COMMANDS` lists them."""
