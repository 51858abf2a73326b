//! Functions of a lane, made into functions of a warp.

use super::types::Compute;
use crate::operand::Operand;
use crate::warp::bits;

/// Lowers what it knows by name, and leaves the rest to others.
pub(super) type Family = fn(&[&str], &[Operand]) -> Lowered;
/// `None` for an instruction of another family.
pub(super) type Lowered = Result<Option<Compute>, String>;

pub(super) fn exactly<const N: usize>(operands: &[Operand]) -> Result<&[Operand; N], String> {
    operands.try_into().map_err(|_| format!("{N} operands are wanted, and {} are here", operands.len()))
}

/// Of 16 or 32 bits, from one source.
pub(super) fn map1(operands: &[Operand], f: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Lowered {
    let [d, a] = exactly(operands)?;
    let (d, a) = (d.narrow()?, a.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let a = w.get(a);
        w.set(d, std::array::from_fn(|i| f(a[i])), mask);
    })))
}

/// Of 16 or 32 bits, from two sources.
pub(super) fn map2(operands: &[Operand], f: impl Fn(u32, u32) -> u32 + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.narrow()?, a.source()?, b.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get(a), w.get(b));
        w.set(d, std::array::from_fn(|i| f(a[i], b[i])), mask);
    })))
}

/// Of 16 or 32 bits, from three sources.
pub(super) fn map3(operands: &[Operand], f: impl Fn(u32, u32, u32) -> u32 + Send + Sync + 'static) -> Lowered {
    let [d, a, b, c] = exactly(operands)?;
    let (d, a, b, c) = (d.narrow()?, a.source()?, b.source()?, c.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b, c) = (w.get(a), w.get(b), w.get(c));
        w.set(d, std::array::from_fn(|i| f(a[i], b[i], c[i])), mask);
    })))
}

/// Of 64 bits, from one source.
pub(super) fn wide1(operands: &[Operand], f: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a] = exactly(operands)?;
    let (d, a) = (d.wide()?, a.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let a = w.get_wide(a);
        w.set_wide(d, std::array::from_fn(|i| f(a[i])), mask);
    })))
}

/// Of 64 bits, from two sources.
pub(super) fn wide2(operands: &[Operand], f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.wide()?, a.wide_source()?, b.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get_wide(a), w.get_wide(b));
        w.set_wide(d, std::array::from_fn(|i| f(a[i], b[i])), mask);
    })))
}

/// Of 64 bits, from three sources.
pub(super) fn wide3(operands: &[Operand], f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a, b, c] = exactly(operands)?;
    let (d, a, b, c) = (d.wide()?, a.wide_source()?, b.wide_source()?, c.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b, c) = (w.get_wide(a), w.get_wide(b), w.get_wide(c));
        w.set_wide(d, std::array::from_fn(|i| f(a[i], b[i], c[i])), mask);
    })))
}

/// Of 64 bits, from one of 64 and one of 32: shifts.
pub(super) fn shift(operands: &[Operand], f: impl Fn(u64, u32) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.wide()?, a.wide_source()?, b.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get_wide(a), w.get(b));
        w.set_wide(d, std::array::from_fn(|i| f(a[i], b[i])), mask);
    })))
}

/// From 64 bits to fewer.
pub(super) fn narrowing(operands: &[Operand], f: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Lowered {
    let [d, a] = exactly(operands)?;
    let (d, a) = (d.narrow()?, a.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let a = w.get_wide(a);
        w.set(d, std::array::from_fn(|i| f(a[i])), mask);
    })))
}

/// To 64 bits from fewer.
pub(super) fn widening(operands: &[Operand], f: impl Fn(u32) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a] = exactly(operands)?;
    let (d, a) = (d.wide()?, a.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let a = w.get(a);
        w.set_wide(d, std::array::from_fn(|i| f(a[i])), mask);
    })))
}

/// To 64 bits from two of fewer: products.
pub(super) fn widening2(operands: &[Operand], f: impl Fn(u32, u32) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.wide()?, a.source()?, b.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get(a), w.get(b));
        w.set_wide(d, std::array::from_fn(|i| f(a[i], b[i])), mask);
    })))
}

/// To 64 bits from two of fewer and one of 64: products with a sum.
pub(super) fn widening3(operands: &[Operand], f: impl Fn(u32, u32, u64) -> u64 + Send + Sync + 'static) -> Lowered {
    let [d, a, b, c] = exactly(operands)?;
    let (d, a, b, c) = (d.wide()?, a.source()?, b.source()?, c.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b, c) = (w.get(a), w.get(b), w.get_wide(c));
        w.set_wide(d, std::array::from_fn(|i| f(a[i], b[i], c[i])), mask);
    })))
}

/// Whether something holds of two values of 16 or 32 bits.
pub(super) fn test2(operands: &[Operand], f: impl Fn(u32, u32) -> bool + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.pred()?, a.source()?, b.source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get(a), w.get(b));
        w.set_pred(d, bits(|i| f(a[i], b[i])), mask);
    })))
}

/// Whether something holds of two values of 64 bits.
pub(super) fn test_wide2(operands: &[Operand], f: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.pred()?, a.wide_source()?, b.wide_source()?);
    Ok(Some(Box::new(move |w, mask| {
        let (a, b) = (w.get_wide(a), w.get_wide(b));
        w.set_pred(d, bits(|i| f(a[i], b[i])), mask);
    })))
}

/// Predicates from predicates, all lanes at once.
pub(super) fn preds(operands: &[Operand], f: impl Fn(u32, u32) -> u32 + Send + Sync + 'static) -> Lowered {
    let [d, a, b] = exactly(operands)?;
    let (d, a, b) = (d.pred()?, a.pred()?, b.pred()?);
    Ok(Some(Box::new(move |w, mask| w.set_pred(d, f(w.preds[a], w.preds[b]), mask))))
}
