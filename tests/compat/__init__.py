"""What released clients and servers say to each other: recorded once, replayed ever after."""
