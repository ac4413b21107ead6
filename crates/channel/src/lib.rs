//! The page that host and guest share, and the protocol between the two sides.
