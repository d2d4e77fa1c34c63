"""What makes a release; `make release VERSION=0.2.0` runs it. Not part of what is released."""
