//! `mma.sync`: a warp multiplies two small matrices, each of which lies in pieces in its lanes' registers.
//!
//! Of TF32 numbers, in the shape 16 x 8 x 8. The ISA says which element is in which register of which lane, and that
//! products are added in binary32, but neither in which order nor how sums are rounded. This machine adds to an element
//! of the accumulator its eight products in order, in binary64, in which the products are exact, and cuts the sum
//! towards zero, as tensor cores were measured to do (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
//! tensor cores", 2021). A device's bits may be others. What is no TF32 number, of which a device would drop bits, is
//! refused.

use super::float::single;
use super::types::Exchange;
use crate::fault::Violation;
use crate::operand::Operand;
use crate::warp::{LANES, Narrow, Source, Warp};

/// Rows of A and of the accumulator, columns of B and of the accumulator, and what is summed over.
const M: usize = 16;
const N: usize = 8;
const K: usize = 8;
/// Bits of a binary32 that TF32 has not.
pub(super) const LOST: u32 = 13;

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Result<Exchange, String> {
    let ["mma", "sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] = name else {
        return Err("a product of matrices that this machine does not know".to_owned());
    };
    let [d, a, b, c] = o else { return Err("four fragments are wanted".to_owned()) };
    let (a, b, c) = (sources::<4>(a)?, sources::<2>(b)?, sources::<4>(c)?);
    let d: [Result<usize, String>; 4] = parts::<4>(d)?.map(Operand::narrow);
    let [d0, d1, d2, d3] = d;
    let d = [d0?, d1?, d2?, d3?];
    Ok(Box::new(move |w, mask| {
        if mask != !0 {
            return Err(Violation::DivergentExchange { members: !0, active: mask });
        }
        let (a, b, c) = (a.map(|s| w.get(s)), b.map(|s| w.get(s)), c.map(|s| w.get(s)));
        let sums = multiply(&matrix_a(&a)?, &matrix_b(&b)?, &c);
        write(w, d, &sums);
        Ok(())
    }))
}

fn parts<const C: usize>(operand: &Operand) -> Result<[&Operand; C], String> {
    let Operand::Vector(parts) = operand else { return Err("a fragment is a vector of registers".to_owned()) };
    let parts: Vec<&Operand> = parts.iter().collect();
    parts.try_into().map_err(|_| format!("a fragment of {C} registers is wanted"))
}

fn sources<const C: usize>(operand: &Operand) -> Result<[Source; C], String> {
    let sources: Result<Vec<Source>, String> = parts::<C>(operand)?.into_iter().map(Operand::source).collect();
    sources?.try_into().map_err(|_| format!("a fragment of {C} registers is wanted"))
}

/// A TF32 number as binary64.
fn number(bits: u32) -> Result<f64, Violation> {
    if bits & ((1 << LOST) - 1) != 0 {
        return Err(Violation::NotTf32 { bits });
    }
    Ok(f64::from(f32::from_bits(bits)))
}

/// Of lane `4 g + t`: rows g and g + 8 of column t, and then of column t + 4.
fn matrix_a(fragments: &[Narrow; 4]) -> Result<[[f64; K]; M], Violation> {
    let mut matrix = [[0.0; K]; M];
    for lane in 0..LANES {
        for (i, fragment) in fragments.iter().enumerate() {
            matrix[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = number(fragment[lane])?;
        }
    }
    Ok(matrix)
}

/// Of lane `4 g + t`: rows t and t + 4 of column g.
fn matrix_b(fragments: &[Narrow; 2]) -> Result<[[f64; N]; K], Violation> {
    let mut matrix = [[0.0; N]; K];
    for lane in 0..LANES {
        for (i, fragment) in fragments.iter().enumerate() {
            matrix[lane % 4 + i * 4][lane / 4] = number(fragment[lane])?;
        }
    }
    Ok(matrix)
}

/// Where an element of the accumulator is: of lane `4 g + t` columns 2 t and 2 t + 1 of row g, and then of row g + 8.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

fn multiply(a: &[[f64; K]; M], b: &[[f64; N]; K], c: &[Narrow; 4]) -> [Narrow; 4] {
    std::array::from_fn(|i| {
        std::array::from_fn(|lane| {
            let (row, column) = place(lane, i);
            let start = f64::from(f32::from_bits(c[i][lane]));
            let sum = (0..K).fold(start, |sum, k| sum + a[row][k] * b[k][column]);
            single(cut(sum))
        })
    })
}

/// The nearest binary32 that is no farther from zero; infinite where the nearest one is.
fn cut(sum: f64) -> f32 {
    let nearest = sum as f32;
    let over = f64::from(nearest).abs() > sum.abs() && nearest.is_finite();
    f32::from_bits(nearest.to_bits() - u32::from(over))
}

fn write(w: &mut Warp, d: [usize; 4], sums: &[Narrow; 4]) {
    for (register, sums) in d.into_iter().zip(sums) {
        w.set(register, *sums, !0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_cut() {
        let half_ulp = 1.0 / f64::from(1 << 24);
        assert_eq!(cut(1.0 + 1.5 * half_ulp), 1.0);
        assert_eq!(cut(-1.0 - 1.999 * half_ulp), -1.0);
        assert_eq!(cut(1.0 + 2.0 * half_ulp), 1.0 + f32::EPSILON);
        assert_eq!(cut(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(cut(f64::MAX), f32::INFINITY);
        assert!(cut(f64::NAN).is_nan());
        assert_eq!(cut(f64::from(f32::MIN_POSITIVE) * 1e-9), 0.0);
    }
}
