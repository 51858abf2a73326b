//! `HMMA`: a warp multiplies two small matrices of TF32, each of which lies in pieces in its lanes' registers, as
//! `mma.sync` of the PTX ISA places them.

use super::super::inst::{Arg, Inst};
use super::super::warp::LANES;
use super::{Action, Args};

pub(super) fn lower(name: &str, inst: &Inst, a: Args<'_>) -> Option<Action> {
    if name != "HMMA" || inst.modifiers != ["1688", "F32", "TF32"] {
        return None;
    }
    let numbers: Vec<u8> = a
        .rest
        .iter()
        .filter_map(|arg| match arg {
            Arg::Reg { number, uniform: false, .. } => Some(*number),
            _ => None,
        })
        .collect();
    let [d, a, b, c] = numbers[..] else { return None };
    Some(Box::new(move |w, _| {
        let at = |base: u8, i: u8, lane: usize| {
            let register = if base == super::super::inst::RZ { base } else { base + i };
            f64::from(f32::from_bits(w.reg(register, lane)))
        };
        let sum = |i: u8, lane: usize| {
            let (row, column) = (lane / 4 + usize::from(i / 2) * 8, lane % 4 * 2 + usize::from(i % 2));
            let products = (0..8usize).map(|k| {
                let of_a = (row % 8 * 4 + k % 4, (row / 8 + k / 4 * 2) as u8);
                let of_b = (column * 4 + k % 4, (k / 4) as u8);
                at(a, of_a.1, of_a.0) * at(b, of_b.1, of_b.0)
            });
            cut(products.fold(at(c, i, lane), |sum, product| sum + product))
        };
        let sums: [[f32; LANES]; 4] = std::array::from_fn(|i| std::array::from_fn(|lane| sum(i as u8, lane)));
        for (i, sums) in (0u8..).zip(sums) {
            for (lane, sum) in sums.into_iter().enumerate() {
                w.set_reg(d + i, lane, sum.to_bits());
            }
        }
    }))
}

/// The nearest binary32 that is no farther from zero: tensor cores cut (`docs/h100.md`).
fn cut(sum: f64) -> f32 {
    let nearest = sum as f32;
    let over = f64::from(nearest).abs() > sum.abs() && nearest.is_finite();
    f32::from_bits(nearest.to_bits() - u32::from(over))
}
