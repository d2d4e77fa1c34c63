"""What this program is called, for the group and for what shells and users are told."""

PROGRAM = "client-lib"
COMPLETION_VARIABLE = "_CLIENT_LIB_COMPLETE"  # click's name for it
