//! What the tests of rotations and of cosine transforms share.

use crate::cases::{Random, normal};

/// Inputs of so many values, by their names: values of every kind, some of them special.
#[must_use]
pub fn inputs(n: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut random = Random(n as u64);
    let bits: Vec<f32> = (0..n).map(|_| f32::from_bits((random.bits() >> 32) as u32)).collect();
    let moderate = normal(n, 7);
    let mut poisoned = moderate.clone();
    (poisoned[n / 2], poisoned[n / 3]) = (f32::NAN, f32::NEG_INFINITY);
    let mut hot = vec![0.0; n];
    hot[n - 1] = -3.0;
    vec![
        ("normal", moderate.clone()),
        ("bits", bits),
        ("poisoned", poisoned),
        ("one-hot", hot),
        ("constant", vec![0.1; n]),
        ("-0", vec![-0.0; n]),
        ("subnormal", moderate.iter().map(|v| v * 1e-40).collect()),
        ("max", vec![f32::MAX; n]),
    ]
}

/// Fails at the first element whose bits differ.
///
/// # Panics
/// There, with the label.
pub fn same(label: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{label}");
    if let Some(at) = (0..found.len()).find(|i| found[*i].to_bits() != expected[*i].to_bits()) {
        panic!("{label}: element {at} is {:e}, not {:e}", found[at], expected[at]);
    }
}
