//! Comparisons and selections.

use super::bitwise::select;
use super::maps::{Lowered, test_wide2, test2};
use super::types::Type;
use crate::operand::Operand;

/// The tests of integers, each compiled into its own loop over the lanes.
macro_rules! integers {
    ($test:expr, $make:ident, $o:expr, $as:ty) => {
        match $test {
            "eq" => $make($o, |a, b| a as $as == b as $as),
            "ne" => $make($o, |a, b| a as $as != b as $as),
            "lt" | "lo" => $make($o, |a, b| (a as $as) < b as $as),
            "le" | "ls" => $make($o, |a, b| a as $as <= b as $as),
            "gt" | "hi" => $make($o, |a, b| a as $as > b as $as),
            "ge" | "hs" => $make($o, |a, b| a as $as >= b as $as),
            _ => Ok(None),
        }
    };
}

/// The tests of floats: the plain ones are false where either is NaN, those that end in `u` true.
macro_rules! floats {
    ($test:expr, $make:ident, $o:expr, $float:ty) => {{
        let of = <$float>::from_bits;
        match $test {
            "eq" => $make($o, move |a, b| of(a) == of(b)),
            "ne" => $make($o, move |a, b| of(a) < of(b) || of(a) > of(b)),
            "lt" => $make($o, move |a, b| of(a) < of(b)),
            "le" => $make($o, move |a, b| of(a) <= of(b)),
            "gt" => $make($o, move |a, b| of(a) > of(b)),
            "ge" => $make($o, move |a, b| of(a) >= of(b)),
            "equ" => $make($o, move |a, b| of(a) == of(b) || of(a).is_nan() || of(b).is_nan()),
            "neu" => $make($o, move |a, b| of(a) != of(b)),
            "ltu" => $make($o, move |a, b| of(a) < of(b) || of(a).is_nan() || of(b).is_nan()),
            "leu" => $make($o, move |a, b| of(a) <= of(b) || of(a).is_nan() || of(b).is_nan()),
            "gtu" => $make($o, move |a, b| of(a) > of(b) || of(a).is_nan() || of(b).is_nan()),
            "geu" => $make($o, move |a, b| of(a) >= of(b) || of(a).is_nan() || of(b).is_nan()),
            "num" => $make($o, move |a, b| !of(a).is_nan() && !of(b).is_nan()),
            "nan" => $make($o, move |a, b| of(a).is_nan() || of(b).is_nan()),
            _ => Ok(None),
        }
    }};
}

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Lowered {
    let Some(of) = name.last().and_then(|t| Type::parse(t)) else { return Ok(None) };
    match name[..name.len() - 1] {
        ["selp"] if of != Type::Pred => select(of.bits(), o),
        ["setp", test] => match of {
            Type::B(64) | Type::U(64) => integers!(test, test_wide2, o, u64),
            Type::S(64) => integers!(test, test_wide2, o, i64),
            Type::B(32) | Type::U(32) => integers!(test, test2, o, u32),
            Type::S(32) => integers!(test, test2, o, i32),
            Type::B(16) | Type::U(16) => integers!(test, test2, o, u16),
            Type::S(16) => integers!(test, test2, o, i16),
            Type::F(32) => floats!(test, test2, o, f32),
            Type::F(64) => floats!(test, test_wide2, o, f64),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}
