//! The oracle's top-k: sorts, and writes bit after bit. From `docs/wire.md`, sharing no code with the product.

use super::wire::{Type, crc32};

/// The indices of the `k` largest magnitudes: NaN above infinity above numbers, ties by the lower index.
pub fn largest(x: &[f32], k: usize) -> Vec<u32> {
    let rank = |v: f32| (v.is_nan(), if v.is_nan() { 0.0 } else { v.abs() });
    let mut order: Vec<u32> = (0..x.len() as u32).collect();
    order.sort_by(|a, b| {
        let (a, b) = (rank(x[*a as usize]), rank(x[*b as usize]));
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    order.truncate(k);
    order.sort_unstable();
    order
}

fn words(bits: Vec<bool>) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u8::from(*bit) << i).sum::<u8>();
    let mut bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn elias_fano(n: usize, indices: &[u32]) -> Vec<u8> {
    if indices.is_empty() {
        return Vec::new();
    }
    let mut width = 0;
    while n / indices.len() >= 2 << width {
        width += 1;
    }
    let low = indices.iter().flat_map(|i| (0..width).map(move |bit| i >> bit & 1 == 1)).collect();
    let mut high = vec![false; indices.len() + ((n - 1) >> width)];
    for (k, i) in indices.iter().enumerate() {
        high[k + (*i as usize >> width)] = true;
    }
    [words(low), words(high)].concat()
}

/// A half as binary32, exactly; a NaN keeps its bits.
pub fn widened(half: u16, of: Type) -> f32 {
    let h = u32::from(half);
    if of == Type::Bf16 {
        return f32::from_bits(h << 16);
    }
    let (sign, exponent, mantissa) = ((h & 0x8000) << 16, h >> 10 & 31, h & 1023);
    match exponent {
        31 => f32::from_bits(sign | 0x7f80_0000 | mantissa << 13),
        0 => f32::from_bits(sign | (mantissa as f32 * 2f32.powi(-24)).to_bits()),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | mantissa << 13),
    }
}

/// Bits of a value as it is sent in a shorter type: to nearest, ties to even, what is finite staying so; of a NaN sign
/// and upper bits, made quiet.
pub fn narrowed(v: f32, of: Type) -> u16 {
    // Fraction bits, and the exponent of the smallest normal number.
    let (fraction, least) = if of == Type::F16 { (10, -14) } else { (7, -126) };
    let infinity = if of == Type::F16 { 0x7c00u16 } else { 0x7f80 };
    let sign = (v.to_bits() >> 16) as u16 & 0x8000;
    if v.is_nan() {
        return sign | infinity | 1 << (fraction - 1) | (v.to_bits() << 9 >> (32 - fraction)) as u16;
    }
    if v.is_infinite() {
        return sign | infinity;
    }
    let magnitude = f64::from(v.abs());
    let exponent = (v.abs().to_bits() >> 23) as i32 - 127;
    let spacing = 2f64.powi(exponent.max(least) - fraction);
    let multiples = (magnitude / spacing).round_ties_even() as u32;
    // Each binade above the least adds 2^fraction to what the bits count.
    let binades = (exponent.max(least) - least) as u32;
    let bits = (binades << fraction) + multiples;
    sign | bits.min(u32::from(infinity) - 1) as u16
}

/// How many a part of `n` entries is.
pub fn part(part: f64, n: usize) -> usize {
    let exact = part * n as f64;
    let above = exact - exact.floor();
    (if above <= exact * 2f64.powi(-51) { exact.floor() } else { exact.ceil() }) as usize
}

/// The indices whose magnitude is at least a threshold, and those of NaN; or all, if those of `size` bytes each take
/// fewer.
pub fn above(x: &[f32], threshold: f32, size: Option<usize>) -> Vec<u32> {
    let reach: Vec<u32> =
        (0..x.len() as u32).filter(|i| x[*i as usize].is_nan() || x[*i as usize].abs() >= threshold).collect();
    match size {
        Some(size) if index_part(x.len(), &reach).1.len() + size * reach.len() > size * x.len() => {
            (0..x.len() as u32).collect()
        }
        _ => reach,
    }
}

/// The indices of the largest of each segment, of which there are elements and k.
pub fn of_each(x: &[f32], segments: impl Iterator<Item = (usize, usize)>) -> Vec<u32> {
    let (mut indices, mut start) = (Vec::new(), 0);
    for (elements, k) in segments {
        indices.extend(largest(&x[start..start + elements], k).into_iter().map(|i| i + start as u32));
        start += elements;
    }
    indices
}

/// Format and bytes of the indices.
fn index_part(n: usize, indices: &[u32]) -> (u8, Vec<u8>) {
    if indices.len() == n {
        return (0, Vec::new());
    }
    let list: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
    let bitmap = words((0..n as u32).map(|i| indices.contains(&i)).collect());
    let mut best = (1, list);
    for (format, bytes) in [(2, elias_fano(n, indices)), (3, bitmap)] {
        if bytes.len() < best.1.len() {
            best = (format, bytes);
        }
    }
    best
}

/// The whole payload of entries whose values take `values` bytes; `sent` is the byte that says how.
pub fn payload(n: usize, gradient: Type, sent: u8, indices: &[u32], values: &[u8]) -> Vec<u8> {
    let gradient = match gradient {
        Type::F32 => 0,
        Type::F16 => 1,
        Type::Bf16 => 2,
    };
    let best = index_part(n, indices);
    let mut out = b"GWIR".to_vec();
    out.extend([1, 3, sent, best.0]);
    out.extend((n as u64).to_le_bytes());
    out.extend([0, 0, gradient, 0]);
    out.extend((indices.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    let body = [&best.1, values].concat();
    let crc = crc32(out.iter().chain(&body).copied());
    out.extend(crc.to_le_bytes());
    out.extend(body);
    out
}
