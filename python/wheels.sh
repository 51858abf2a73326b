#!/usr/bin/env bash
# Builds the wheels that are published: Linux on x86-64 and on AArch64, for every glibc from 2.17 on, into target/wheels.
# Needs `pip install maturin ziglang` and both Rust targets; zig links for the other processor and for an old glibc.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR=$PWD/target
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
  maturin build --release --locked --zig --target "$target" --compatibility manylinux2014 --interpreter python3.11 --out target/wheels
done
ls -l target/wheels
