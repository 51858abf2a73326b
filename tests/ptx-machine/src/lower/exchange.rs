//! Shuffles, votes and reductions: what lanes of a warp tell each other.
//!
//! The lanes of the member mask must be exactly the lanes that are there. sm_70 and newer would wait for the missing
//! ones; older ones would read whatever their registers hold.

use super::types::{Exchange, Type};
use crate::fault::Violation;
use crate::operand::Operand;
use crate::warp::{LANES, Narrow, Source, Warp, lanes};

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Result<Exchange, String> {
    match (name, o) {
        (["shfl", "sync", mode, "b32"], [d, a, b, c, members]) => shuffle(mode, d, [a, b, c, members]),
        (["vote", "sync", "ballot", "b32"], [d, p, members]) => {
            let (d, p, members) = (d.narrow()?, p.pred()?, members.source()?);
            Ok(Box::new(move |w, mask| {
                present(w, members, mask)?;
                w.set(d, [w.preds[p] & mask; LANES], mask);
                Ok(())
            }))
        }
        (["vote", "sync", mode @ ("all" | "any" | "uni"), "pred"], [d, p, members]) => {
            let (d, p, members) = (d.pred()?, p.pred()?, members.source()?);
            let holds: fn(u32, u32) -> bool = match *mode {
                "all" => |votes, mask| votes == mask,
                "any" => |votes, _| votes != 0,
                _ => |votes, mask| votes == 0 || votes == mask,
            };
            Ok(Box::new(move |w, mask| {
                present(w, members, mask)?;
                let verdict = if holds(w.preds[p] & mask, mask) { !0 } else { 0 };
                w.set_pred(d, verdict, mask);
                Ok(())
            }))
        }
        (["redux", "sync", fold, of], [d, a, members]) => {
            let (d, a, members) = (d.narrow()?, a.source()?, members.source()?);
            let fold = folded(fold, Type::parse(of))?;
            Ok(Box::new(move |w, mask| {
                present(w, members, mask)?;
                let a = w.get(a);
                if let Some(folded) = lanes(mask).map(|lane| a[lane]).reduce(fold) {
                    w.set(d, [folded; LANES], mask);
                }
                Ok(())
            }))
        }
        (["activemask", "b32"], [d]) => {
            let d = d.narrow()?;
            Ok(Box::new(move |w, mask| {
                w.set(d, [mask; LANES], mask);
                Ok(())
            }))
        }
        _ => Err("an instruction that this machine does not know".to_owned()),
    }
}

/// A way to fold two values into one.
pub(super) fn folded(name: &str, of: Option<Type>) -> Result<fn(u32, u32) -> u32, String> {
    Ok(match (name, of) {
        ("add", Some(Type::U(32) | Type::S(32))) => u32::wrapping_add,
        ("min", Some(Type::U(32))) => u32::min,
        ("max", Some(Type::U(32))) => u32::max,
        ("min", Some(Type::S(32))) => |a, b| (a as i32).min(b as i32) as u32,
        ("max", Some(Type::S(32))) => |a, b| (a as i32).max(b as i32) as u32,
        ("and", Some(Type::B(32))) => |a, b| a & b,
        ("or", Some(Type::B(32))) => |a, b| a | b,
        ("xor", Some(Type::B(32))) => |a, b| a ^ b,
        _ => return Err(format!("to fold by {name} is not known for this type")),
    })
}

fn present(w: &Warp, members: Source, active: u32) -> Result<(), Violation> {
    if matches!(members, Source::Constant(members) if members == active) {
        return Ok(());
    }
    let members: Narrow = w.get(members);
    match lanes(active).find(|lane| members[*lane] != active) {
        None => Ok(()),
        Some(lane) => Err(Violation::DivergentExchange { members: members[lane], active }),
    }
}

/// `shfl.sync`: the ISA's pseudocode, a lane at a time.
fn shuffle(mode: &str, d: &Operand, [a, b, c, members]: [&Operand; 4]) -> Result<Exchange, String> {
    let (d, valid) = match d {
        Operand::Pair(pair) => (pair[0].narrow()?, Some(pair[1].pred()?)),
        d => (d.narrow()?, None),
    };
    let (a, b, c, members) = (a.source()?, b.source()?, c.source()?, members.source()?);
    // The lane taken from, and whether it is in range, from the lane, `b`, and the least and largest lane of its
    // segment.
    let from: fn(u32, u32, u32, u32) -> (u32, bool) = match mode {
        "up" => |lane, b, _, most| (lane.wrapping_sub(b), lane as i64 - i64::from(b) >= i64::from(most)),
        "down" => |lane, b, _, most| (lane + b, lane + b <= most),
        "bfly" => |lane, b, _, most| (lane ^ b, lane ^ b <= most),
        "idx" => |_, b, least, most| (least | b, (least | b) <= most),
        _ => return Err(format!("a shuffle `{mode}` is not known")),
    };
    let index = mode == "idx";
    // The lane that a lane takes from, and whether the one that it asked for is in range.
    let source_of = move |lane: usize, b: u32, c: u32| {
        let (clamp, segment) = (c & 31, c >> 8 & 31);
        let number = lane as u32;
        let (least, most) = (number & segment, number & segment | clamp & !segment);
        let b = if index { b & 31 & !segment } else { b & 31 };
        let (source, valid) = from(number, b, least, most);
        (if valid { source } else { number }, valid)
    };
    // Most often it is known before the kernel runs, and all lanes are there.
    let table = match (b, c) {
        (Source::Constant(b), Source::Constant(c)) => {
            Some(std::array::from_fn::<_, LANES, _>(|lane| source_of(lane, b, c)))
        }
        _ => None,
    };
    let table = table.map(|table| (table.map(|(source, _)| source as u8 % 32), crate::warp::bits(|l| table[l].1)));
    Ok(Box::new(move |w, mask| {
        present(w, members, mask)?;
        if let (Some((sources, in_range)), u32::MAX) = (&table, mask) {
            let a = w.get(a);
            w.set(d, std::array::from_fn(|lane| a[sources[lane] as usize]), mask);
            if let Some(valid) = valid {
                w.set_pred(valid, *in_range, mask);
            }
            return Ok(());
        }
        let (a, b, c) = (w.get(a), w.get(b), w.get(c));
        let mut taken = [0; LANES];
        let mut in_range = 0;
        for lane in lanes(mask) {
            let number = lane as u32;
            let (source, valid) = source_of(lane, b[lane], c[lane]);
            in_range |= u32::from(valid) << lane;
            if mask >> source & 1 == 0 {
                return Err(Violation::AbsentLane { lane: number, from: source });
            }
            taken[lane] = a[source as usize];
        }
        w.set(d, taken, mask);
        if let Some(valid) = valid {
            w.set_pred(valid, in_range, mask);
        }
        Ok(())
    }))
}
