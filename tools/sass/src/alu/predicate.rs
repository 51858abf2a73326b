//! Comparisons, and predicates made of predicates.

use super::super::inst::{Arg, Inst};
use super::super::warp::{Source, Warp, lanes};
use super::maps::lut;
use super::{Action, Args, map, which};

pub(super) fn lower(name: &str, inst: &Inst, a: Args<'_>) -> Option<Action> {
    match name {
        "ISETP" => compare(inst, a),
        "PLOP3" => logic(a),
        "P2R" => pack(a, false),
        "UP2UR" => pack(a, true),
        "R2P" => unpack(a),
        _ => None,
    }
}

/// How a comparison's result and a predicate are combined.
pub(super) fn combine(inst: &Inst) -> fn(u32, u32) -> u32 {
    match (inst.has("OR"), inst.has("XOR")) {
        (true, _) => |x, y| x | y,
        (_, true) => |x, y| x ^ y,
        _ => |x, y| x & y,
    }
}

fn compare(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (p, q) = (a.pred_out()?, a.pred_out()?);
    let (x, y, input) = (a.source()?, a.source()?, a.pred()?);
    // What the lower words compared to decides where the upper ones are equal.
    let lower = if inst.has("EX") { Some(a.pred()?) } else { None };
    let wide = inst.has("U64") || inst.has("S64");
    let (signed, with) = (!inst.has("U32") && !inst.has("U64"), combine(inst));
    let kind = inst.modifiers.first()?.clone();
    let holds: fn(i128, i128) -> bool = match kind.as_str() {
        "LT" => |x, y| x < y,
        "LE" => |x, y| x <= y,
        "GT" => |x, y| x > y,
        "GE" => |x, y| x >= y,
        "EQ" => |x, y| x == y,
        "NE" => |x, y| x != y,
        _ => return None,
    };
    Some(Box::new(move |w, mask| {
        let value = |s: &Source, l: usize| match (wide, signed) {
            (true, true) => i128::from(s.long(w, l) as i64),
            (true, false) => i128::from(s.long(w, l)),
            (false, true) => i128::from(s.int(w, l) as i32),
            (false, false) => i128::from(s.int(w, l)),
        };
        let result = which(mask, |l| {
            let (x, y) = (value(&x, l), value(&y, l));
            match lower {
                Some(lower) if x == y => w.pred(lower) >> l & 1 == 1,
                _ => holds(x, y),
            }
        });
        let other = w.pred(input);
        let (first, second) = (with(result, other), with(!result, other));
        w.set_pred(p, first, mask);
        w.set_pred(q, second, mask);
    }))
}

fn logic(mut a: Args<'_>) -> Option<Action> {
    let (p, q) = (a.pred_out()?, a.pred_out()?);
    let (x, y, z) = (a.pred()?, a.pred()?, a.pred()?);
    let (first, second) = (a.number()?, a.number()?);
    Some(Box::new(move |w, mask| {
        let (x, y, z) = (w.pred(x), w.pred(y), w.pred(z));
        w.set_pred(p, lut(first, x, y, z), mask);
        w.set_pred(q, lut(second, x, y, z), mask);
    }))
}

/// Predicates, or the warp's, as the bits of a register.
fn pack(mut a: Args<'_>, uniform: bool) -> Option<Action> {
    let d = a.target()?;
    if let Some(Arg::Name(name)) = a.rest.first()
        && (name == "PR" || name == "UPR")
    {
        a.next();
    }
    let (x, bits) = (a.source()?, a.source()?);
    map(d, move |w: &Warp, l| {
        let preds = (0..7).fold(0, |all, p| all | (w.pred((p, uniform, false)) >> l & 1) << p);
        let bits = bits.int(w, l);
        x.int(w, l) & !bits | preds & bits
    })
}

/// Predicates from the bits of a register.
fn unpack(mut a: Args<'_>) -> Option<Action> {
    a.name().filter(|name| *name == "PR")?;
    let (x, bits) = (a.source()?, a.number()?);
    Some(Box::new(move |w, mask| {
        for p in (0..7u8).filter(|p| bits >> p & 1 == 1) {
            let values = lanes(mask).filter(|l| x.int(w, *l) >> p & 1 == 1).fold(0, |all, l| all | 1 << l);
            w.set_pred((p, false), values, mask);
        }
    }))
}
