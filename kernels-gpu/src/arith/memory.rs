//! What is kept of an element from step to step.

use super::float::{INF_BITS, MAGNITUDE, accumulate, canonical};

/// The momentum after a step: gain * gradient + factor * momentum, each operation rounded. A momentum that is not
/// finite counts as 0, or it would stay so for ever.
#[inline(always)]
pub fn momentum(before: f32, factor: f32, gradient: f32, gain: f32) -> f32 {
    let gradient = gain * gradient;
    let next = accumulate(gradient, factor, before);
    if before.to_bits() & MAGNITUDE < INF_BITS { next } else { canonical(gradient) }
}

/// What is left of a value of which so many times itself was sent: of a factor of 1 nothing, whatever the value is.
#[inline(always)]
pub fn rest(value: f32, sent: f32, factor: f32) -> f32 {
    if factor == 1.0 { 0.0 } else { canonical(value - sent) }
}
