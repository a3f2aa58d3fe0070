"""The command line: one module a command, each reads arguments, calls, prints."""
