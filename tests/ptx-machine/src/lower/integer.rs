//! Integer arithmetic: two's complement, wrapping, as the ISA has it.

use super::maps::{Lowered, exactly, map1, map2, map3, wide1, wide2, wide3, widening2, widening3};
use super::types::Type;
use crate::operand::Operand;
use crate::warp::bits;

const MASK16: u32 = 0xffff;

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Lowered {
    let Some(of) = name.last().and_then(|t| Type::parse(t)) else { return Ok(None) };
    use Type::{S, U};
    match (&name[..name.len() - 1], of) {
        (["add"], S(32) | U(32)) => map2(o, u32::wrapping_add),
        (["sub"], S(32) | U(32)) => map2(o, u32::wrapping_sub),
        (["mul", "lo"], S(32) | U(32)) => map2(o, u32::wrapping_mul),
        (["mad", "lo"], S(32) | U(32)) => map3(o, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        (["mul", "hi"], U(32)) => map2(o, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        (["mul", "hi"], S(32)) => map2(o, |a, b| ((signed(a) * signed(b)) >> 32) as u32),
        (["mul", "wide"], U(32)) => widening2(o, |a, b| u64::from(a) * u64::from(b)),
        (["mul", "wide"], S(32)) => widening2(o, |a, b| (signed(a) * signed(b)) as u64),
        (["mul", "wide"], U(16)) => map2(o, |a, b| (a & MASK16) * (b & MASK16)),
        (["mad", "wide"], U(32)) => widening3(o, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        (["mad", "wide"], S(32)) => widening3(o, |a, b, c| ((signed(a) * signed(b)) as u64).wrapping_add(c)),
        (["min"], U(32)) => map2(o, u32::min),
        (["max"], U(32)) => map2(o, u32::max),
        (["min"], S(32)) => map2(o, |a, b| (a as i32).min(b as i32) as u32),
        (["max"], S(32)) => map2(o, |a, b| (a as i32).max(b as i32) as u32),
        (["neg"], S(32)) => map1(o, u32::wrapping_neg),
        (["abs"], S(32)) => map1(o, |a| (a as i32).wrapping_abs() as u32),

        (["add"], S(16) | U(16)) => map2(o, |a, b| a.wrapping_add(b) & MASK16),
        (["sub"], S(16) | U(16)) => map2(o, |a, b| a.wrapping_sub(b) & MASK16),
        (["mul", "lo"], S(16) | U(16)) => map2(o, |a, b| a.wrapping_mul(b) & MASK16),
        (["min"], U(16)) => map2(o, |a, b| (a & MASK16).min(b & MASK16)),
        (["max"], U(16)) => map2(o, |a, b| (a & MASK16).max(b & MASK16)),
        (["min"], S(16)) => map2(o, |a, b| u32::from((a as i16).min(b as i16) as u16)),
        (["max"], S(16)) => map2(o, |a, b| u32::from((a as i16).max(b as i16) as u16)),
        (["neg"], S(16)) => map1(o, |a| a.wrapping_neg() & MASK16),

        (["add"], S(64) | U(64)) => wide2(o, u64::wrapping_add),
        (["sub"], S(64) | U(64)) => wide2(o, u64::wrapping_sub),
        (["mul", "lo"], S(64) | U(64)) => wide2(o, u64::wrapping_mul),
        (["mad", "lo"], S(64) | U(64)) => wide3(o, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        (["mul", "hi"], U(64)) => wide2(o, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        (["min"], U(64)) => wide2(o, u64::min),
        (["max"], U(64)) => wide2(o, u64::max),
        (["min"], S(64)) => wide2(o, |a, b| (a as i64).min(b as i64) as u64),
        (["max"], S(64)) => wide2(o, |a, b| (a as i64).max(b as i64) as u64),
        (["neg"], S(64)) => wide1(o, u64::wrapping_neg),
        (["abs"], S(64)) => wide1(o, |a| (a as i64).wrapping_abs() as u64),

        (["add", "cc"], S(64) | U(64)) => carrying(o, false, true),
        (["addc", "cc"], S(64) | U(64)) => carrying(o, true, true),
        (["addc"], S(64) | U(64)) => carrying(o, true, false),
        (["addc"], S(32) | U(32)) => add_carry(o),
        (["mad", "lo", "cc"], S(32) | U(32)) => mad_carry(o),
        _ => Ok(None),
    }
}

fn signed(a: u32) -> i64 {
    i64::from(a as i32)
}

/// A 64-bit sum that takes the carry flag, or sets it, or both.
fn carrying(o: &[Operand], takes: bool, sets: bool) -> Lowered {
    let [d, a, b] = exactly(o)?;
    let (d, a, b) = (d.wide()?, a.wide_source()?, b.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get_wide(a), w.get_wide(b));
        let carry = if takes { w.carry } else { 0 };
        let sum: [u128; 32] = std::array::from_fn(|i| u128::from(a[i]) + u128::from(b[i]) + u128::from(carry >> i & 1));
        w.set_wide(d, std::array::from_fn(|i| sum[i] as u64), mask);
        if sets {
            w.carry = (w.carry & !mask) | (bits(|i| sum[i] >> 64 != 0) & mask);
        }
    })))
}

/// A 32-bit sum that takes the carry flag.
fn add_carry(o: &[Operand]) -> Lowered {
    let [d, a, b] = exactly(o)?;
    let (d, a, b) = (d.narrow()?, a.source()?, b.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get(a), w.get(b));
        let carry = w.carry;
        w.set(d, std::array::from_fn(|i| a[i].wrapping_add(b[i]).wrapping_add(carry >> i & 1)), mask);
    })))
}

/// The lower half of a 32-bit product, and a sum with it that sets the carry flag.
fn mad_carry(o: &[Operand]) -> Lowered {
    let [d, a, b, c] = exactly(o)?;
    let (d, a, b, c) = (d.narrow()?, a.source()?, b.source()?, c.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b, c) = (w.get(a), w.get(b), w.get(c));
        let sum: [(u32, bool); 32] = std::array::from_fn(|i| a[i].wrapping_mul(b[i]).overflowing_add(c[i]));
        w.set(d, std::array::from_fn(|i| sum[i].0), mask);
        w.carry = (w.carry & !mask) | (bits(|i| sum[i].1) & mask);
    })))
}
