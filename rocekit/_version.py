"""The version of rocekit. To ask for that of the installed package takes longer than many a command."""

VERSION = "0.2.0"
