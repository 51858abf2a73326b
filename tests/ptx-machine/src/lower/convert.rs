//! Conversions between types, and between address spaces.

use super::float::{NAN32, double, format_of, single};
use super::maps::{Lowered, map1, narrowing, wide1, widening};
use super::matrix::LOST;
use super::types::Type;
use crate::memory::window;
use crate::operand::Operand;

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Lowered {
    match name {
        ["cvta", "to", "global", "u64"] | ["cvta", "global", "u64"] => wide1(o, |a| a),
        ["cvta", "to", "shared", "u64"] => wide1(o, |a| a.wrapping_sub(window::SHARED)),
        ["cvta", "shared", "u64"] => wide1(o, |a| a.wrapping_add(window::SHARED)),
        ["cvta", "to", "local", "u64"] => wide1(o, |a| a.wrapping_sub(window::LOCAL)),
        ["cvta", "local", "u64"] => wide1(o, |a| a.wrapping_add(window::LOCAL)),
        ["cvt", rest @ ..] => convert(rest, o),
        _ => Ok(None),
    }
}

fn convert(rest: &[&str], o: &[Operand]) -> Lowered {
    if let ["rna", "tf32", "f32"] = rest {
        return map1(o, tf32);
    }
    let (rounding, to, from) = match *rest {
        [to, from] => (None, Type::parse(to), Type::parse(from)),
        [rounding, to, from] => (Some(rounding), Type::parse(to), Type::parse(from)),
        _ => return Ok(None),
    };
    let (Some(to), Some(from)) = (to, from) else { return Ok(None) };
    use Type::{Bf16, F, S, U};
    match (rounding, to, from) {
        // Into a wider register these would extend the sign, and the width of a register is not kept.
        (None, S(8 | 16), _) => Ok(None),
        (None, U(_) | S(_), U(_) | S(_)) => integers(to, from, o),
        // Integer to float, to nearest even.
        (Some("rn"), F(32), U(64)) => narrowing(o, |a| single(a as f32)),
        (Some("rn"), F(32), S(64)) => narrowing(o, |a| single(a as i64 as f32)),
        (Some("rn"), F(32), U(32)) => map1(o, |a| single(a as f32)),
        (Some("rn"), F(32), S(32)) => map1(o, |a| single(a as i32 as f32)),
        (Some("rn"), F(32), U(16)) => map1(o, |a| single(f32::from(a as u16))),
        (Some("rn"), F(32), S(16)) => map1(o, |a| single(f32::from(a as i16))),
        (Some("rn"), F(64), U(64)) => wide1(o, |a| double(a as f64)),
        (Some("rn"), F(64), S(64)) => wide1(o, |a| double(a as i64 as f64)),
        (Some("rn"), F(64), U(32)) => widening(o, |a| double(f64::from(a))),
        (Some("rn"), F(64), S(32)) => widening(o, |a| double(f64::from(a as i32))),
        (Some(rounding), U(_) | S(_), F(_)) => to_integer(rounding, to, from, o),
        // Float to float.
        (None, F(64), F(32)) => widening(o, |a| double(f64::from(f32::from_bits(a)))),
        (Some("rn"), F(32), F(64)) => narrowing(o, |a| single(f64::from_bits(a) as f32)),
        (None, F(32), F(16) | Bf16) => {
            let Some(format) = format_of(from) else { return Ok(None) };
            map1(o, move |a| single(format.value(a as u16) as f32))
        }
        (Some("rn"), F(16) | Bf16, F(32)) => {
            let Some(format) = format_of(to) else { return Ok(None) };
            map1(o, move |a| u32::from(format.round(f64::from(f32::from_bits(a)))))
        }
        _ => Ok(None),
    }
}

/// To the nearest TF32 number, of two the one farther from zero: binary32 without its low 13 bits.
fn tf32(bits: u32) -> u32 {
    let kept = !((1 << LOST) - 1);
    if f32::from_bits(bits).is_nan() { NAN32 & kept } else { bits.wrapping_add(1 << (LOST - 1)) & kept }
}

/// Cut to the narrower of the two widths; to the wider, extended by the sign where the source has one.
fn integers(to: Type, from: Type, o: &[Operand]) -> Lowered {
    let extend = move |a: u64| -> u64 {
        let unused = 64 - from.bits();
        let extended = match from {
            Type::S(_) => (((a << unused) as i64) >> unused) as u64,
            _ => a << unused >> unused,
        };
        // Registers of 16 bits hold zeros above.
        let unused = 64 - to.bits();
        extended << unused >> unused
    };
    match (to.bits() == 64, from.bits() == 64) {
        (true, true) => wide1(o, extend),
        (true, false) => widening(o, move |a| extend(u64::from(a))),
        (false, true) => narrowing(o, move |a| extend(a) as u32),
        (false, false) => map1(o, move |a| extend(u64::from(a)) as u32),
    }
}

/// What is beyond the type becomes its nearest end. NaN becomes zero where both types are of 32 bits or fewer, and else
/// the highest bit of the result.
fn to_integer(rounding: &str, to: Type, from: Type, o: &[Operand]) -> Lowered {
    let round: fn(f64) -> f64 = match rounding {
        "rzi" => f64::trunc,
        "rni" => f64::round_ties_even,
        "rmi" => f64::floor,
        "rpi" => f64::ceil,
        _ => return Ok(None),
    };
    let wide = move |value: f64| -> u64 {
        if value.is_nan() {
            return 1 << 63;
        }
        match to {
            Type::U(_) => round(value) as u64,
            _ => round(value) as i64 as u64,
        }
    };
    let narrow = move |value: f64| -> u32 {
        if value.is_nan() {
            return if from == Type::F(64) { 1 << (to.bits() - 1) } else { 0 };
        }
        match to {
            Type::U(16) => u32::from(round(value) as u16),
            Type::S(16) => u32::from(round(value) as i16 as u16),
            Type::U(_) => round(value) as u32,
            _ => round(value) as i32 as u32,
        }
    };
    match (to.bits(), from) {
        (64, Type::F(64)) => wide1(o, move |a| wide(f64::from_bits(a))),
        (64, Type::F(32)) => widening(o, move |a| wide(f64::from(f32::from_bits(a)))),
        (16 | 32, Type::F(64)) => narrowing(o, move |a| narrow(f64::from_bits(a))),
        (16 | 32, Type::F(32)) => map1(o, move |a| narrow(f64::from(f32::from_bits(a)))),
        _ => Ok(None),
    }
}
