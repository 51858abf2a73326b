//! Criterion benches of the CPU backend live in `benches/`; `cargo xtask bench` is the one for users.
