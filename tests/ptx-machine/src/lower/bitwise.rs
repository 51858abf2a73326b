//! Moves, logic, shifts and bit fields.

use super::maps::{Lowered, exactly, map1, map2, map3, narrowing, preds, shift, wide1, wide2};
use super::types::Type;
use crate::operand::Operand;

const MASK16: u32 = 0xffff;

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Lowered {
    let Some(of) = name.last().and_then(|t| Type::parse(t)) else { return Ok(None) };
    let width = of.bits();
    match (&name[..name.len() - 1], of) {
        (["mov"], Type::Pred) => {
            let [d, a] = exactly(o)?;
            let d = d.pred()?;
            // A predicate's literal is false where it is zero, and true else.
            if let Operand::Constant(value) = a {
                let lanes = if *value == 0 { 0 } else { !0 };
                return Ok(Some(Box::new(move |w, mask| w.set_pred(d, lanes, mask))));
            }
            let a = a.pred()?;
            Ok(Some(Box::new(move |w, mask| w.set_pred(d, w.preds[a], mask))))
        }
        (["mov"], _) => mov(width, o),
        (["and"], Type::Pred) => preds(o, |a, b| a & b),
        (["or"], Type::Pred) => preds(o, |a, b| a | b),
        (["xor"], Type::Pred) => preds(o, |a, b| a ^ b),
        (["not"], Type::Pred) => {
            let [d, a] = exactly(o)?;
            let (d, a) = (d.pred()?, a.pred()?);
            Ok(Some(Box::new(move |w, mask| w.set_pred(d, !w.preds[a], mask))))
        }
        (["and"], Type::B(64)) => wide2(o, |a, b| a & b),
        (["or"], Type::B(64)) => wide2(o, |a, b| a | b),
        (["xor"], Type::B(64)) => wide2(o, |a, b| a ^ b),
        (["not"], Type::B(64)) => wide1(o, |a| !a),
        (["and"], Type::B(16)) => map2(o, |a, b| a & b & MASK16),
        (["or"], Type::B(16)) => map2(o, |a, b| (a | b) & MASK16),
        (["xor"], Type::B(16)) => map2(o, |a, b| (a ^ b) & MASK16),
        (["and"], Type::B(_)) => map2(o, |a, b| a & b),
        (["or"], Type::B(_)) => map2(o, |a, b| a | b),
        (["xor"], Type::B(_)) => map2(o, |a, b| a ^ b),
        (["not"], Type::B(16)) => map1(o, |a| !a & MASK16),
        (["not"], Type::B(32)) => map1(o, |a| !a),
        // Amounts beyond the width shift everything out.
        (["shl"], Type::B(64)) => shift(o, |a, n| a.checked_shl(n).unwrap_or(0)),
        (["shr"], Type::U(64) | Type::B(64)) => shift(o, |a, n| a.checked_shr(n).unwrap_or(0)),
        (["shr"], Type::S(64)) => shift(o, |a, n| ((a as i64) >> n.min(63)) as u64),
        (["shl"], Type::B(32)) => map2(o, |a, n| a.checked_shl(n).unwrap_or(0)),
        (["shl"], Type::B(16)) => map2(o, |a, n| a.checked_shl(n).unwrap_or(0) & MASK16),
        (["shr"], Type::U(16) | Type::B(16)) => map2(o, |a, n| (a & MASK16).checked_shr(n).unwrap_or(0)),
        (["shr"], Type::U(_) | Type::B(_)) => map2(o, |a, n| a.checked_shr(n).unwrap_or(0)),
        (["shr"], Type::S(32)) => map2(o, |a, n| ((a as i32) >> n.min(31)) as u32),
        (["shr"], Type::S(16)) => map2(o, |a, n| (i32::from(a as i16) >> n.min(31)) as u32 & MASK16),
        (["shf", "l", "wrap"], Type::B(32)) => map3(o, |a, b, n| (join(a, b) << (n & 31) >> 32) as u32),
        (["shf", "l", "clamp"], Type::B(32)) => map3(o, |a, b, n| (join(a, b) << n.min(32) >> 32) as u32),
        (["shf", "r", "wrap"], Type::B(32)) => map3(o, |a, b, n| (join(a, b) >> (n & 31)) as u32),
        (["shf", "r", "clamp"], Type::B(32)) => map3(o, |a, b, n| (join(a, b) >> n.min(32)) as u32),
        (["bfe"], Type::U(32)) => map3(o, |a, from, len| {
            let (from, len) = (from & 0xff, len & 0xff);
            let field = u64::from(a).checked_shr(from).unwrap_or(0);
            (field & (1u64 << len.min(32)).wrapping_sub(1)) as u32
        }),
        (["bfe"], Type::S(32)) => map3(o, |a, from, len| {
            let (from, len) = (from & 0xff, len & 0xff);
            if len == 0 {
                return 0;
            }
            // The field's highest bit, or the word's where the field goes beyond it, is the sign of what is above.
            let sign = (a as i32) << (31 - (from + len - 1).min(31)) >> 31;
            let field = u64::from(a).checked_shr(from).unwrap_or(0) as u32;
            let width = len.min(32u32.saturating_sub(from));
            let mask = (1u64 << width).wrapping_sub(1) as u32;
            (field & mask) | (sign as u32 & !mask)
        }),
        (["popc"], Type::B(32)) => map1(o, u32::count_ones),
        (["clz"], Type::B(32)) => map1(o, u32::leading_zeros),
        (["popc"], Type::B(64)) => narrowing(o, u64::count_ones),
        (["clz"], Type::B(64)) => narrowing(o, u64::leading_zeros),
        (["brev"], Type::B(32)) => map1(o, u32::reverse_bits),
        (["brev"], Type::B(64)) => wide1(o, u64::reverse_bits),
        (["bfind"], Type::U(32)) => map1(o, |a| 31u32.wrapping_sub(a.leading_zeros())),
        (["prmt"], Type::B(32)) => map3(o, |a, b, selector| {
            let bytes = join(a, b).to_le_bytes();
            u32::from_le_bytes(std::array::from_fn(|i| {
                let nibble = selector >> (4 * i) & 15;
                let byte = bytes[nibble as usize & 7];
                // The top bit of a nibble spreads the byte's sign.
                if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
            }))
        }),
        _ => Ok(None),
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A move, or the packing and unpacking of a pair.
fn mov(width: u32, o: &[Operand]) -> Lowered {
    let [d, a] = exactly(o)?;
    match (d, a) {
        (Operand::Vector(parts), _) => unpack(width, parts, a),
        (_, Operand::Vector(parts)) => pack(width, d, parts),
        _ => match width {
            64 => wide1(o, |a| a),
            32 => map1(o, |a| a),
            16 => map1(o, |a| a & MASK16),
            _ => Ok(None),
        },
    }
}

fn unpack(width: u32, parts: &[Operand], from: &Operand) -> Lowered {
    let [low, high] = parts else { return Err("a vector of other than two parts is not known".to_owned()) };
    let into = |part: &Operand| match part {
        Operand::Sink => Ok(None),
        part => part.narrow().map(Some),
    };
    let (low, high) = (into(low)?, into(high)?);
    match width {
        64 => {
            let from = from.wide_source()?;
            Ok(Some(Box::new(move |w, mask| {
                let v = w.get_wide(from);
                for (part, shift) in [(low, 0), (high, 32)] {
                    if let Some(part) = part {
                        w.set(part, std::array::from_fn(|i| (v[i] >> shift) as u32), mask);
                    }
                }
            })))
        }
        32 => {
            let from = from.source()?;
            Ok(Some(Box::new(move |w, mask| {
                let v = w.get(from);
                for (part, shift) in [(low, 0), (high, 16)] {
                    if let Some(part) = part {
                        w.set(part, std::array::from_fn(|i| v[i] >> shift & MASK16), mask);
                    }
                }
            })))
        }
        _ => Ok(None),
    }
}

fn pack(width: u32, to: &Operand, parts: &[Operand]) -> Lowered {
    let [low, high] = parts else { return Err("a vector of other than two parts is not known".to_owned()) };
    let (low, high) = (low.source()?, high.source()?);
    match width {
        64 => {
            let to = to.wide()?;
            Ok(Some(Box::new(move |w, mask| {
                let (low, high) = (w.get(low), w.get(high));
                w.set_wide(to, std::array::from_fn(|i| join(low[i], high[i])), mask);
            })))
        }
        32 => {
            let to = to.narrow()?;
            Ok(Some(Box::new(move |w, mask| {
                let (low, high) = (w.get(low), w.get(high));
                w.set(to, std::array::from_fn(|i| high[i] << 16 | (low[i] & MASK16)), mask);
            })))
        }
        _ => Ok(None),
    }
}

/// `selp`: by a predicate, one of two.
pub(super) fn select(width: u32, o: &[Operand]) -> Lowered {
    let [d, a, b, p] = exactly(o)?;
    let p = p.pred()?;
    if width == 64 {
        let (d, a, b) = (d.wide()?, a.wide_source()?, b.wide_source()?);
        return Ok(Some(Box::new(move |w, mask| {
            let (a, b, p) = (w.get_wide(a), w.get_wide(b), w.preds[p]);
            w.set_wide(d, std::array::from_fn(|i| if p >> i & 1 == 1 { a[i] } else { b[i] }), mask);
        })));
    }
    let (d, a, b) = (d.narrow()?, a.source()?, b.source()?);
    let keep = if width == 16 { MASK16 } else { !0 };
    Ok(Some(Box::new(move |w, mask| {
        let (a, b, p) = (w.get(a), w.get(b), w.preds[p]);
        w.set(d, std::array::from_fn(|i| keep & if p >> i & 1 == 1 { a[i] } else { b[i] }), mask);
    })))
}
