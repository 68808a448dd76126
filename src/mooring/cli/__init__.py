"""The `mooring` command: one file per noun, `mooring.cli.commands.COMMANDS` the table of them."""
