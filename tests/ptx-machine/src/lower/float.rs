//! Floating-point arithmetic, IEEE 754 with subnormal numbers, as sm_20 and newer have it. A result that is NaN is
//! 0x7fffffff, as devices give it for f32, or its like in the other types: the payload of an operand never shows. The
//! ISA leaves f32's bits open and keeps payloads in f64, so no kernel may count on either.
//!
//! `add`, `sub` and `mul` without `.rn` are refused: the compiler behind PTX may fuse those, so their bits are not
//! determined. So is whatever flushes or approximates.

use super::half::{BF16, F16, Format};
use super::maps::{Lowered, map1, map2, map3, wide1, wide2, wide3};
use super::types::Type;
use crate::operand::Operand;

/// The NaN of 32-bit results.
pub(super) const NAN32: u32 = 0x7fff_ffff;
/// The NaN of 64-bit results.
pub(super) const NAN64: u64 = 0x7fff_ffff_ffff_ffff;

pub(super) fn single(value: f32) -> u32 {
    if value.is_nan() { NAN32 } else { value.to_bits() }
}

pub(super) fn double(value: f64) -> u64 {
    if value.is_nan() { NAN64 } else { value.to_bits() }
}

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Lowered {
    match name {
        [rest @ .., "f32"] => of_32(rest, o),
        [rest @ .., "f64"] => of_64(rest, o),
        [rest @ .., "f16"] => of_16(F16, rest, o),
        [rest @ .., "bf16"] => of_16(BF16, rest, o),
        _ => Ok(None),
    }
}

const FUSIBLE: &str = "without `.rn` the compiler may fuse this, and its bits are not determined";

fn of_32(name: &[&str], o: &[Operand]) -> Lowered {
    let f = f32::from_bits;
    match name {
        ["add", "rn"] => map2(o, move |a, b| single(f(a) + f(b))),
        ["sub", "rn"] => map2(o, move |a, b| single(f(a) - f(b))),
        ["mul", "rn"] => map2(o, move |a, b| single(f(a) * f(b))),
        ["div", "rn"] => map2(o, move |a, b| single(f(a) / f(b))),
        ["fma", "rn"] => map3(o, move |a, b, c| single(f(a).mul_add(f(b), f(c)))),
        ["sqrt", "rn"] => map1(o, move |a| single(f(a).sqrt())),
        ["rcp", "rn"] => map1(o, move |a| single(1.0 / f(a))),
        ["min"] => map2(o, move |a, b| single(least(f(a), f(b)))),
        ["max"] => map2(o, move |a, b| single(-least(-f(a), -f(b)))),
        ["abs"] => map1(o, move |a| single(f(a).abs())),
        ["neg"] => map1(o, move |a| single(-f(a))),
        ["add" | "sub" | "mul"] => Err(FUSIBLE.to_owned()),
        _ => Ok(None),
    }
}

/// The smaller; the other where one is NaN; of two zeros the negative one.
fn least(a: f32, b: f32) -> f32 {
    match a.partial_cmp(&b) {
        None => {
            if a.is_nan() {
                b
            } else {
                a
            }
        }
        Some(std::cmp::Ordering::Equal) if a.is_sign_negative() => a,
        Some(std::cmp::Ordering::Less) => a,
        Some(_) => b,
    }
}

fn of_64(name: &[&str], o: &[Operand]) -> Lowered {
    let f = f64::from_bits;
    match name {
        ["add", "rn"] => wide2(o, move |a, b| double(f(a) + f(b))),
        ["sub", "rn"] => wide2(o, move |a, b| double(f(a) - f(b))),
        ["mul", "rn"] => wide2(o, move |a, b| double(f(a) * f(b))),
        ["div", "rn"] => wide2(o, move |a, b| double(f(a) / f(b))),
        ["fma", "rn"] => wide3(o, move |a, b, c| double(f(a).mul_add(f(b), f(c)))),
        ["sqrt", "rn"] => wide1(o, move |a| double(f(a).sqrt())),
        ["rcp", "rn"] => wide1(o, move |a| double(1.0 / f(a))),
        ["abs"] => wide1(o, move |a| double(f(a).abs())),
        ["neg"] => wide1(o, move |a| double(-f(a))),
        ["add" | "sub" | "mul"] => Err(FUSIBLE.to_owned()),
        _ => Ok(None),
    }
}

/// Sums of two and products of two 16-bit floats in 53 bits, rounded again, are those rounded once: 53 is more than
/// twice either precision and two (Figueroa 1995).
fn of_16(format: Format, name: &[&str], o: &[Operand]) -> Lowered {
    let pair = move |f: fn(f64, f64) -> f64| {
        map2(o, move |a, b| u32::from(format.round(f(format.value(a as u16), format.value(b as u16)))))
    };
    match name {
        ["add", "rn"] => pair(|a, b| a + b),
        ["sub", "rn"] => pair(|a, b| a - b),
        ["mul", "rn"] => pair(|a, b| a * b),
        ["fma", "rn"] => map3(o, move |a, b, c| u32::from(format.fma(a as u16, b as u16, c as u16))),
        ["abs"] => map1(o, move |a| u32::from(format.round(format.value(a as u16).abs()))),
        ["neg"] => map1(o, move |a| u32::from(format.round(-format.value(a as u16)))),
        ["add" | "sub" | "mul"] => Err(FUSIBLE.to_owned()),
        _ => Ok(None),
    }
}

/// The format of a 16-bit type.
pub(super) fn format_of(of: Type) -> Option<Format> {
    match of {
        Type::F(16) => Some(F16),
        Type::Bf16 => Some(BF16),
        _ => None,
    }
}
