//! Floats: IEEE 754, and where a unit approximates, the nearest value.

use super::super::inst::Inst;
use super::super::warp::{Source, Warp};
use super::predicate::combine;
use super::{Action, Args, map, which, write_pair};

pub(super) fn lower(name: &str, inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    match name {
        "FADD" => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            plain(inst, d, move |w, l| x.float(w, l) + y.float(w, l))
        }
        "FMUL" => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            plain(inst, d, move |w, l| x.float(w, l) * y.float(w, l))
        }
        "FFMA" => fused(inst, a),
        "FMNMX" => {
            let (d, x, y, least) = (a.target()?, a.source()?, a.source()?, a.pred()?);
            plain(inst, d, move |w, l| {
                let (x, y) = (x.float(w, l), y.float(w, l));
                if w.pred(least) >> l & 1 == 1 { x.min(y) } else { x.max(y) }
            })
        }
        "FSEL" => {
            let (d, x, y, p) = (a.target()?, a.source()?, a.source()?, a.pred()?);
            map(d, move |w, l| if w.pred(p) >> l & 1 == 1 { x.signed(w, l) } else { y.signed(w, l) })
        }
        "FSETP" | "DSETP" => compare(inst, a, name == "DSETP"),
        "FCHK" => check(a),
        "MUFU" => approximate(inst, a),
        "DADD" | "DMUL" | "DFMA" => double(name, inst, a),
        "HADD2" if inst.modifiers == ["F32"] => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            map(d, move |w, l| bits(x.half(w, l) + y.half(w, l)))
        }
        // A constant comes through this pipe where the others are busy: minus zero times zero, and the pair of halves.
        "HFMA2" => {
            let (d, x, y) = (a.target()?, a.source()?, a.source()?);
            let value = a.number()?;
            Some(Box::new(move |w, mask| {
                super::write(w, d, mask, |w, l| if (x.int(w, l) | y.int(w, l)) << 1 == 0 { value } else { !0 });
            }))
        }
        "I2FP" | "I2F" => from_integer(inst, a),
        "F2I" => to_integer(inst, a),
        "F2F" if inst.modifiers == ["F64", "F32"] => {
            let (d, x) = (a.target()?, a.source()?);
            Some(Box::new(move |w, mask| write_pair(w, d, mask, |w, l| f64::from(x.float(w, l)).to_bits())))
        }
        "F2F" if inst.modifiers == ["F32", "F64"] => {
            let (d, x) = (a.target()?, a.source()?);
            map(d, move |w, l| bits(x.double(w, l) as f32))
        }
        _ => None,
    }
}

/// The bits of a result. Every NaN that a unit makes is this one.
fn bits(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// A number of which too small ones are taken as zero.
fn flushed(value: f32, flush: bool) -> f32 {
    if flush && value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}

fn plain(inst: &Inst, d: (u8, bool), f: impl Fn(&Warp, usize) -> f32 + Send + Sync + 'static) -> Option<Action> {
    if inst.modifiers.iter().any(|m| m != "FTZ") {
        return None;
    }
    let flush = inst.has("FTZ");
    map(d, move |w, l| bits(flushed(f(w, l), flush)))
}

/// A direction in which a sum is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Towards {
    Nearest,
    Zero,
    Up,
    Down,
}

fn fused(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x, y, z) = (a.target()?, a.source()?, a.source()?, a.source()?);
    let towards = match inst.modifiers.as_slice() {
        [] => Towards::Nearest,
        [one] if one == "RZ" => Towards::Zero,
        [one] if one == "RP" => Towards::Up,
        [one] if one == "RM" => Towards::Down,
        [one] if one == "FTZ" => Towards::Nearest,
        _ => return None,
    };
    let flush = inst.has("FTZ");
    map(d, move |w, l| bits(flushed(rounded(x.float(w, l), y.float(w, l), z.float(w, l), towards), flush)))
}

/// `x y + z`, rounded once in that direction. The product is exact in binary64, and so is what the sum there loses.
fn rounded(x: f32, y: f32, z: f32, towards: Towards) -> f32 {
    let nearest = x.mul_add(y, z);
    if towards == Towards::Nearest || !nearest.is_finite() {
        return nearest;
    }
    let (p, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let s = p + z;
    let back = s - p;
    let lost = (p - (s - back)) + (z - back);
    let apart = f64::from(nearest) - s;
    let above = apart > lost;
    let below = apart < lost;
    match towards {
        Towards::Up if below => nearest.next_up(),
        Towards::Down if above => nearest.next_down(),
        Towards::Zero if above && s > 0.0 => nearest.next_down(),
        Towards::Zero if below && s < 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

fn compare(inst: &Inst, mut a: Args<'_>, double: bool) -> Option<Action> {
    let (p, q) = (a.pred_out()?, a.pred_out()?);
    let (x, y, input) = (a.source()?, a.source()?, a.pred()?);
    let kind = inst.modifiers.first()?.clone();
    let (name, unordered) = match kind.as_str() {
        "NAN" => ("NAN", true),
        "NUM" => ("NUM", false),
        kind => match kind.strip_suffix('U').filter(|rest| rest.len() == 2) {
            Some(rest) => (rest, true),
            None => (kind, false),
        },
    };
    let holds: fn(f64, f64) -> bool = match name {
        "LT" => |x, y| x < y,
        "LE" => |x, y| x <= y,
        "GT" => |x, y| x > y,
        "GE" => |x, y| x >= y,
        "EQ" => |x, y| x == y,
        "NE" => |x, y| x != y,
        "NAN" => |_, _| false,
        "NUM" => |_, _| true,
        _ => return None,
    };
    let (flush, with) = (inst.has("FTZ"), combine(inst));
    Some(Box::new(move |w, mask| {
        let value = |s: &Source, l| {
            if double { s.double(w, l) } else { f64::from(flushed(s.float(w, l), flush)) }
        };
        let result = which(mask, |l| {
            let (x, y) = (value(&x, l), value(&y, l));
            if x.is_nan() || y.is_nan() { unordered } else { holds(x, y) }
        });
        let other = w.pred(input);
        let (first, second) = (with(result, other), with(!result, other));
        w.set_pred(p, first, mask);
        w.set_pred(q, second, mask);
    }))
}

/// Whether a quotient needs more care than a reciprocal and its corrections: where an operand, the quotient or a
/// remainder is at the ends of the range. A device draws the line somewhere there.
fn check(mut a: Args<'_>) -> Option<Action> {
    let (p, x, y) = (a.pred_out()?, a.source()?, a.source()?);
    Some(Box::new(move |w, mask| {
        let exponent = |word: u32| (word >> 23 & 255) as i32;
        let result = which(mask, |l| {
            let (x, y) = (x.signed(w, l), y.signed(w, l));
            let (above, below) = (exponent(x), exponent(y));
            let zero = x << 1 == 0 && below != 0 && below < 253;
            !zero && (above < 25 || above == 255 || below == 0 || below >= 253 || (above - below).abs() > 125)
        });
        w.set_pred(p, result, mask);
    }))
}

fn approximate(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    match inst.modifiers.as_slice() {
        [one] if one == "RCP" => map(d, move |w, l| bits(1.0 / x.float(w, l))),
        [one] if one == "RSQ" => map(d, move |w, l| bits((1.0 / f64::from(x.float(w, l)).sqrt()) as f32)),
        [one] if one == "SQRT" => map(d, move |w, l| bits(x.float(w, l).sqrt())),
        // These take and give the upper half of a binary64.
        [one] if one == "RCP64H" => map(d, move |w, l| ((1.0 / upper(x.signed(w, l))).to_bits() >> 32) as u32),
        [one] if one == "RSQ64H" => map(d, move |w, l| ((1.0 / upper(x.signed(w, l)).sqrt()).to_bits() >> 32) as u32),
        _ => None,
    }
}

/// A binary64 of which this is the upper half.
fn upper(word: u32) -> f64 {
    f64::from_bits(u64::from(word) << 32)
}

fn double(name: &str, inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    if !inst.modifiers.is_empty() {
        return None;
    }
    let (d, x, y) = (a.target()?, a.source()?, a.source()?);
    let z = if name == "DFMA" { Some(a.source()?) } else { None };
    let sum = name == "DADD";
    Some(Box::new(move |w, mask| {
        write_pair(w, d, mask, |w, l| {
            let (x, y) = (x.double(w, l), y.double(w, l));
            match &z {
                Some(z) => x.mul_add(y, z.double(w, l)).to_bits(),
                None if sum => (x + y).to_bits(),
                None => (x * y).to_bits(),
            }
        });
    }))
}

fn from_integer(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    if inst.has("RP") || inst.has("RM") || inst.has("RZ") {
        return None;
    }
    let double = inst.has("F64");
    if inst.has("U64") || inst.has("S64") || double {
        let (long, signed) =
            (inst.has("U64") || inst.has("S64"), inst.has("S64") || !inst.has("U64") && !inst.has("U32"));
        let value = move |w: &Warp, l: usize| {
            if long {
                x.long(w, l)
            } else if signed {
                i64::from(x.int(w, l) as i32) as u64
            } else {
                u64::from(x.int(w, l))
            }
        };
        return Some(Box::new(move |w, mask| {
            if double {
                let value = |w: &Warp, l: usize| if signed { value(w, l) as i64 as f64 } else { value(w, l) as f64 };
                write_pair(w, d, mask, |w, l| value(w, l).to_bits());
            } else {
                let value = |w: &Warp, l: usize| if signed { value(w, l) as i64 as f32 } else { value(w, l) as f32 };
                super::write(w, d, mask, |w, l| value(w, l).to_bits());
            }
        }));
    }
    let kept: fn(u32) -> f32 = match inst.modifiers.iter().map(String::as_str).find(|m| *m != "F32") {
        Some("U8") => |x| f32::from(x as u8),
        Some("S8") => |x| f32::from(x as i8),
        Some("U16") => |x| f32::from(x as u16),
        Some("S16") => |x| f32::from(x as i16),
        Some("U32") => |x| x as f32,
        None | Some("S32") => |x| x as i32 as f32,
        Some(_) => return None,
    };
    map(d, move |w, l| kept(x.int(w, l)).to_bits())
}

fn to_integer(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    if !inst.has("TRUNC") || inst.has("U64") || inst.has("S64") || inst.has("FTZ") {
        return None;
    }
    let (double, unsigned) = (inst.has("F64"), inst.has("U32"));
    map(d, move |w, l| {
        let value = if double { x.double(w, l) } else { f64::from(x.float(w, l)) };
        if unsigned { value as u32 } else { value as i32 as u32 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_is_kept() {
        let (x, y) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON / 2.0);
        // 1 + e/2 - e^2/2 lies below the half between 1 and 1 + e.
        assert_eq!(rounded(x, y, 0.0, Towards::Nearest), 1.0);
        assert_eq!(rounded(x, y, 0.0, Towards::Up), 1.0 + f32::EPSILON);
        assert_eq!(rounded(x, y, 0.0, Towards::Down), 1.0);
        assert_eq!(rounded(-x, y, 0.0, Towards::Down), -1.0 - f32::EPSILON);
        assert_eq!(rounded(-x, y, 0.0, Towards::Zero), -1.0);
        assert_eq!(rounded(2.0, 3.0, 1.0, Towards::Up), 7.0);
    }
}
