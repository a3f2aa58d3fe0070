"""`pocketserver qr`: a running server's address as a QR code, in the terminal or as a picture."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pocketserver import run_file, settings
from pocketserver.errors import StartupError
from pocketserver.lan import qr as codes

_PAIR_WARNING = "Anyone who sees this code can use the server."
