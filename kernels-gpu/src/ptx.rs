//! The committed PTX.
