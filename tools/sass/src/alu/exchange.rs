//! What lanes tell each other: shuffles, votes, reductions.

use super::super::inst::Inst;
use super::super::warp::lanes;
use super::{Action, Args, write};

pub(super) fn lower(name: &str, inst: &Inst, a: Args<'_>) -> Option<Action> {
    match name {
        "SHFL" => shuffle(inst, a),
        "VOTE" | "VOTEU" => vote(inst, a),
        "REDUX" | "CREDUX" => reduce(inst, a),
        "R2UR" => {
            let mut a = a;
            let (d, x) = (a.target()?, a.source()?);
            Some(Box::new(move |w, mask| {
                let value = x.int(w, mask.trailing_zeros() as usize % 32);
                w.set_ureg(d.0, value);
            }))
        }
        _ => None,
    }
}

/// As `shfl.sync` of the PTX ISA has it. A lane that asks for one that is not there keeps its own value.
fn shuffle(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (p, d) = (a.pred_out()?, a.target()?);
    let (x, b, c) = (a.source()?, a.source()?, a.source()?);
    let kind = match inst.modifiers.first()?.as_str() {
        "UP" => 0,
        "DOWN" => 1,
        "BFLY" => 2,
        "IDX" => 3,
        _ => return None,
    };
    Some(Box::new(move |w, mask| {
        let (mut from, mut inside) = ([0usize; 32], 0);
        for lane in lanes(mask) {
            let (b, c) = (b.int(w, lane) & 31, c.int(w, lane));
            let (clamp, segments, own) = (c & 31, c >> 8 & 31, lane as u32);
            let most = own & segments | clamp & !segments;
            let least = own & segments;
            let (other, valid) = match kind {
                0 => (own.wrapping_sub(b), own as i32 - b as i32 >= most as i32),
                1 => (own + b, own + b <= most),
                2 => (own ^ b, own ^ b <= most),
                _ => (least | b & !segments, least | b & !segments <= most),
            };
            let valid = if kind == 2 { (own ^ b) <= most } else { valid };
            from[lane] = if valid { other as usize % 32 } else { lane };
            inside |= u32::from(valid) << lane;
        }
        let values: Vec<u32> = (0..32).map(|lane| x.int(w, lane)).collect();
        write(w, d, mask, |_, lane| values[from[lane]]);
        w.set_pred(p, inside, mask);
    }))
}

fn vote(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let d = match a.left() {
        3 => Some(a.target()?),
        2 => None,
        _ => return None,
    };
    let (p, x) = (a.pred_out()?, a.pred()?);
    let kind = inst.modifiers.first()?.clone();
    if !["ANY", "ALL", "EQ"].contains(&kind.as_str()) {
        return None;
    }
    Some(Box::new(move |w, mask| {
        let votes = w.pred(x) & mask;
        let holds = match kind.as_str() {
            "ANY" => votes != 0,
            "ALL" => votes == mask,
            _ => votes == 0 || votes == mask,
        };
        if let Some(d) = d {
            write(w, d, mask, |_, _| votes);
        }
        w.set_pred(p, if holds { !0 } else { 0 }, mask);
    }))
}

fn reduce(inst: &Inst, mut a: Args<'_>) -> Option<Action> {
    let (d, x) = (a.target()?, a.source()?);
    let signed = inst.has("S32");
    let fold: fn(u32, u32) -> u32 = match (inst.modifiers.first().map_or("AND", String::as_str), signed) {
        ("SUM", _) => u32::wrapping_add,
        ("MAX", false) => |x, y| x.max(y),
        ("MIN", false) => |x, y| x.min(y),
        ("MAX", true) => |x, y| (x as i32).max(y as i32) as u32,
        ("MIN", true) => |x, y| (x as i32).min(y as i32) as u32,
        ("OR", _) => |x, y| x | y,
        ("XOR", _) => |x, y| x ^ y,
        ("AND", _) if inst.modifiers.is_empty() || inst.has("AND") => |x, y| x & y,
        _ => return None,
    };
    Some(Box::new(move |w, mask| {
        let value = lanes(mask).map(|lane| x.int(w, lane)).reduce(fold).unwrap_or(0);
        write(w, d, mask, |_, _| value);
    }))
}
