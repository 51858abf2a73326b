//! What needs no GPU: codecs, wire format, hostile bytes, the suite on the CPU. Some of it runs on every device.

use gradwire_tests::meter::Meter;

// The tests of `hostile`, `interface` and `mutations` bound what a call allocates.
#[global_allocator]
static METER: Meter = Meter;

mod bad_input;
mod bounds;
mod dct;
mod float_environment;
mod foreign_bytes;
mod hostile;
mod interface;
mod mutations;
mod packing;
mod per_sign;
mod plans;
mod powersgd;
mod powersgd_faults;
mod powersgd_state;
mod random;
mod recipes;
mod rotation;
mod run;
mod selection;
mod session;
mod suite;
mod thresholds;
mod topk;
mod vectors;
mod vote;
mod wire_page;
mod workers;
