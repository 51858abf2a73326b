//! Integers: sums, products, shifts, bits.

use super::super::inst::Inst;
use super::super::warp::{Source, Warp};
use super::maps::{bytes, funnel, lut};
use super::{Action, Args, map, which, write, write_pair};

pub(super) fn lower(name: &str, inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    match name {
        "MOV" if inst.modifiers == ["64"] => {
            let (d, x) = (a.target()?, a.source()?);
            Some(Box::new(move |w, mask| write_pair(w, d, mask, |w, l| x.long(w, l))))
        }
        "MOV" if inst.modifiers.is_empty() => one(a, |x| x),
        "IADD3" => add3(inst, a),
        "IADD" => add2(inst, a),
        "VIADD" if inst.modifiers.is_empty() => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            map(d, move |w, l| x.int(w, l).wrapping_add(y.int(w, l)))
        }
        "IMAD" => multiply(inst, a),
        "LEA" => shifted_sum(inst, a),
        "LOP3" => logic(inst, a),
        "SHF" => shift(inst, a),
        "VIMNMX" | "IMNMX" => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            extreme(d, inst, a, vec![x, y])
        }
        "VIMNMX3" => {
            let (d, x, y, z) = (a.target()?, a.source()?, a.source()?, a.source()?);
            extreme(d, inst, a, vec![x, y, z])
        }
        "VIADDMNMX" => {
            let (d, x, y, z) = (a.target()?, a.source()?, a.source()?, a.source()?);
            let (least, signed) = (a.pred()?, !inst.has("U32"));
            map(d, move |w, l| {
                let sum = x.int(w, l).wrapping_add(y.int(w, l));
                choose(w.pred(least) >> l & 1 == 1, signed, sum, z.int(w, l))
            })
        }
        "SEL" if inst.modifiers == ["64"] => {
            let (d, x, y, p) = (a.target()?, a.source()?, a.source()?, a.pred()?);
            Some(Box::new(move |w, mask| {
                write_pair(w, d, mask, |w, l| if w.pred(p) >> l & 1 == 1 { x.long(w, l) } else { y.long(w, l) });
            }))
        }
        "SEL" if inst.modifiers.is_empty() => {
            let (d, x, y, p) = (a.target()?, a.source()?, a.source()?, a.pred()?);
            map(d, move |w, l| if w.pred(p) >> l & 1 == 1 { x.int(w, l) } else { y.int(w, l) })
        }
        "PRMT" => {
            let (d, x, s, y) = (a.target()?, a.source()?, a.source()?, a.source()?);
            if !inst.modifiers.is_empty() {
                return None;
            }
            map(d, move |w, l| bytes(x.int(w, l), y.int(w, l), s.int(w, l)))
        }
        "SGXT" => {
            let (d, x, n) = (a.target()?, a.source()?, a.source()?);
            let unsigned = inst.has("U32");
            map(d, move |w, l| {
                let unused = 32 - n.int(w, l).min(32);
                let shifted = x.int(w, l).checked_shl(unused).unwrap_or(0);
                if unsigned {
                    shifted.checked_shr(unused).unwrap_or(0)
                } else {
                    ((shifted as i32) >> unused.min(31)) as u32
                }
            })
        }
        "POPC" => one(a, u32::count_ones),
        "BREV" => one(a, u32::reverse_bits),
        "FLO" if inst.modifiers == ["U32"] => one(a, |x| if x == 0 { !0 } else { 31 - x.leading_zeros() }),
        "FLO" if inst.modifiers == ["U32", "SH"] => one(a, |x| if x == 0 { !0 } else { x.leading_zeros() }),
        "IABS" => one(a, |x| (x as i32).unsigned_abs()),
        "CS2R" => {
            let (d, _) = (a.target()?, a.name().filter(|name| *name == "SRZ")?);
            let narrow = inst.has("32");
            Some(Box::new(
                move |w, mask| {
                    if narrow { write(w, d, mask, |_, _| 0) } else { write_pair(w, d, mask, |_, _| 0) }
                },
            ))
        }
        "LDC" | "ULDC" | "LDCU" => constant(inst, a),
        "S2R" | "S2UR" => special(a),
        _ => None,
    }
}

fn one(mut a: Args<'_>, f: fn(u32) -> u32) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    map(d, move |w, l| f(x.int(w, l)))
}

/// The smaller or the larger.
fn choose(least: bool, signed: bool, x: u32, y: u32) -> u32 {
    let first_is_less = if signed { (x as i32) < y as i32 } else { x < y };
    if first_is_less == least { x } else { y }
}

fn extreme(d: (u8, bool), inst: &Inst, mut a: Args<'_>, of: Vec<Source>) -> Option<Action> {
    let (least, signed) = (a.pred()?, !inst.has("U32"));
    map(d, move |w, l| {
        let least = w.pred(least) >> l & 1 == 1;
        let values = of.iter().map(|s| s.int(w, l));
        values.reduce(|x, y| choose(least, signed, x, y)).unwrap_or(0)
    })
}

/// A sum of two, of 32 or 64 bits, with a carry out and one in.
fn add2(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, outs) = (a.target()?, a.preds());
    let (x, y, ins) = (a.source()?, a.source()?, a.preds());
    let known = inst.modifiers.iter().all(|m| ["64", "X"].contains(&m.as_str()));
    if !known || outs.len() > 1 || ins.is_empty() == inst.has("X") {
        return None;
    }
    let wide = inst.has("64");
    let width = if wide { 64 } else { 32 };
    Some(Box::new(move |w, mask| {
        let sum = |w: &Warp, l: usize| {
            let carried: u128 = ins.iter().map(|p| u128::from(w.pred(*p) >> l & 1)).sum();
            let value = |s: &Source| if wide { s.wide_addend(w, l) } else { u128::from(s.addend(w, l)) };
            value(&x) + value(&y) + carried
        };
        let carry = which(mask, |l| sum(w, l) >> width != 0);
        if wide {
            write_pair(w, d, mask, |w, l| sum(w, l) as u64);
        } else {
            write(w, d, mask, |w, l| sum(w, l) as u32);
        }
        if let Some(out) = outs.first() {
            w.set_pred((out.0, out.1), carry, mask);
        }
    }))
}

/// A sum of three, with two carries out, of which the second is set where the sum has two, and with carries in.
fn add3(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, outs) = (a.target()?, a.preds());
    let (x, y, z) = (a.source()?, a.source()?, a.source()?);
    let ins = a.preds();
    let known = inst.modifiers.iter().all(|m| ["64", "X"].contains(&m.as_str()));
    if !known || ins.is_empty() == inst.has("X") {
        return None;
    }
    let wide = inst.has("64");
    let width = if wide { 64 } else { 32 };
    Some(Box::new(move |w, mask| {
        let sum = |w: &Warp, l: usize| {
            let carried: u128 = ins.iter().map(|p| u128::from(w.pred(*p) >> l & 1)).sum();
            let value = |s: &Source| if wide { s.wide_addend(w, l) } else { u128::from(s.addend(w, l)) };
            value(&x) + value(&y) + value(&z) + carried
        };
        let carry = |least: u128| which(mask, |l| sum(w, l) >> width >= least);
        let carries: Vec<u32> = (1..=outs.len() as u128).map(carry).collect();
        if wide {
            write_pair(w, d, mask, |w, l| sum(w, l) as u64);
        } else {
            write(w, d, mask, |w, l| sum(w, l) as u32);
        }
        for (out, carry) in outs.iter().zip(carries) {
            w.set_pred((out.0, out.1), carry, mask);
        }
    }))
}

fn multiply(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let d = a.target()?;
    if !a.preds().is_empty() {
        return None;
    }
    let (x, y, z) = (a.source()?, a.source()?, a.source()?);
    let carry = a.preds();
    let signed = !inst.has("U32");
    let wide = inst.has("WIDE");
    if wide && (x.is_negative() || y.is_negative()) || carry.is_empty() == inst.has("X") {
        return None;
    }
    if wide || inst.has("HI") {
        let product = move |w: &Warp, l: usize| {
            let (x, y) = (x.int(w, l), y.int(w, l));
            let product =
                if signed { (i64::from(x as i32) * i64::from(y as i32)) as u64 } else { u64::from(x) * u64::from(y) };
            product.wrapping_add(z.long(w, l))
        };
        return Some(Box::new(move |w, mask| {
            if wide { write_pair(w, d, mask, &product) } else { write(w, d, mask, |w, l| (product(w, l) >> 32) as u32) }
        }));
    }
    map(d, move |w, l| {
        let carried: u32 = carry.iter().map(|p| w.pred(*p) >> l & 1).sum();
        x.int(w, l).wrapping_mul(y.int(w, l)).wrapping_add(z.int(w, l)).wrapping_add(carried)
    })
}

/// `LEA`: a number shifted, and one added; `.HI`: the upper word of a pair shifted.
fn shifted_sum(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, outs) = (a.target()?, a.preds());
    let (x, y) = (a.source()?, a.source()?);
    let high = if inst.has("HI") { Some(a.source()?) } else { None };
    let (by, ins) = (a.number()? & 31, a.preds());
    if inst.has("SX32") || ins.is_empty() == inst.has("X") || outs.len() > 1 {
        return None;
    }
    Some(Box::new(move |w, mask| {
        let sum = |w: &Warp, l: usize| {
            let shifted = match &high {
                None => x.int(w, l) << by,
                Some(high) => ((u64::from(high.int(w, l)) << 32 | u64::from(x.int(w, l))) << by >> 32) as u32,
            };
            let carried: u64 = ins.iter().map(|p| u64::from(w.pred(*p) >> l & 1)).sum();
            u64::from(shifted) + y.addend(w, l) + carried
        };
        let carry = which(mask, |l| sum(w, l) >> 32 != 0);
        write(w, d, mask, |w, l| sum(w, l) as u32);
        if let Some(out) = outs.first() {
            w.set_pred((out.0, out.1), carry, mask);
        }
    }))
}

fn logic(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let outs = a.preds();
    let (d, x, y, z) = (a.target()?, a.source()?, a.source()?, a.source()?);
    let (table, input) = (a.number()?, a.pred()?);
    let both = inst.has("PAND");
    Some(Box::new(move |w, mask| {
        let value = |w: &Warp, l: usize| lut(table, x.int(w, l), y.int(w, l), z.int(w, l));
        let (any, other) = (which(mask, |l| value(w, l) != 0), w.pred(input));
        write(w, d, mask, value);
        if let Some(out) = outs.first() {
            w.set_pred((out.0, out.1), if both { any & other } else { any | other }, mask);
        }
    }))
}

fn shift(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, low, by, high) = (a.target()?, a.source()?, a.source()?, a.source()?);
    let (left, wrap, upper) = (inst.has("L"), inst.has("W"), inst.has("HI"));
    let (wide, signed) = (inst.has("U64") || inst.has("S64"), inst.has("S32") || inst.has("S64"));
    map(d, move |w, l| {
        let most = if wide { 64 } else { 32 };
        let by = by.int(w, l);
        let by = if wrap { by % most } else { by.min(most) };
        funnel(low.int(w, l), high.int(w, l), by, left, upper, signed)
    })
}

fn constant(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    match inst.modifiers.first().map(String::as_str) {
        None => map(d, move |w, l| x.int(w, l)),
        Some("64") => Some(Box::new(move |w, mask| write_pair(w, d, mask, |w, l| x.long(w, l)))),
        Some("128") => {
            let (next, high) = (x.further(8)?, (d.0.checked_add(2)?, d.1));
            Some(Box::new(move |w, mask| {
                write_pair(w, d, mask, |w, l| x.long(w, l));
                write_pair(w, high, mask, |w, l| next.long(w, l));
            }))
        }
        Some("U8") => map(d, move |w, l| x.int(w, l) & 0xff),
        Some("U16") => map(d, move |w, l| x.int(w, l) & 0xffff),
        Some(_) => None,
    }
}

fn special(mut a: Args<'_>) -> Option<Action> {
    let (d, name) = (a.target()?, a.name()?);
    match name {
        "SR_TID.X" => map(d, |w, l| w.number * 32 + l as u32),
        "SR_CTAID.X" => map(d, |w, _| w.block),
        "SR_LANEID" => map(d, |_, l| l as u32),
        "SR_LTMASK" => map(d, |_, l| (1 << l) - 1),
        "SR_LEMASK" => map(d, |_, l| u32::MAX >> (31 - l)),
        "SR_CgaCtaId" | "SR_TID.Y" | "SR_TID.Z" | "SR_CTAID.Y" | "SR_CTAID.Z" => map(d, |_, _| 0),
        _ => None,
    }
}
