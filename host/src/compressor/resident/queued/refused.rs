//! What cannot be queued, since a host would have to look at it on the way.

use crate::codec::topk::Keep;
use crate::error::{Error, RecipeError};
use crate::plan::NonFinite;
use crate::recipe::{Quantize, Recipe};
use crate::wire::Entropy;

/// Refuses a recipe of which a step, from `step` on, has no fixed size on the device, or asks the host.
pub(super) fn refuse(recipe: &Recipe, step: u64) -> Result<(), Error> {
    let (what, remedy) = if recipe.memory().is_formed() {
        let what = "ef21, diana, beta and gamma refuse what is not finite, which the host would have to wait for";
        (what, "use ResidentCompressor::exchange, or ef")
    } else if recipe.policy() == NonFinite::Error {
        let what = "finite refuses what is not finite, which the host would have to wait for";
        (what, "use ResidentCompressor::exchange, or leave out finite")
    } else if recipe.clipped().is_some() {
        let what = "clip multiplies by a norm, which the host computes";
        (what, "use ResidentCompressor::exchange, or leave out clip")
    } else if recipe.peers_bound().is_some() {
        let what = "peers bounds a norm, which the host computes";
        (what, "use ResidentCompressor::exchange, or leave out peers")
    } else if recipe.entropy != Entropy::None {
        let what = "elias and base3 make payloads of other sizes in each step, and a queued gather has one size";
        (what, "use ResidentCompressor::exchange, or leave out elias, delta, base3 and sparse")
    } else if recipe.select.as_ref().is_some_and(|select| matches!(select.keep(), Keep::Above(_))) {
        let what = "topk:above keeps another number of entries in each step, and a queued gather has one size";
        (what, "use ResidentCompressor::exchange, or topk with a part or a number")
    } else if recipe.select.as_ref().is_some_and(|select| matches!(select.keep(), Keep::Estimate { .. })) {
        let what = "estimate keeps another number of entries in each step, and the host computes its threshold";
        (what, "use ResidentCompressor::exchange, or leave out estimate")
    } else if recipe.select.as_ref().is_some_and(|select| matches!(select.keep(), Keep::PerSign(_))) {
        let what = "persign keeps another number of entries in each step, and the host picks them";
        (what, "use ResidentCompressor::exchange, or leave out persign")
    } else if recipe.select.is_some() && recipe.quantize != Quantize::Exact {
        let what = "values of a selection that are rounded or quantized are written by the host";
        (what, "use ResidentCompressor::exchange, or leave out what stands behind topk")
    } else if recipe.of_factors().is_some() {
        let what = "factors through a quantizer are gathered by way of the host";
        (what, "use ResidentCompressor::exchange, or leave out the quantizer")
    } else if recipe.rotation().is_some() {
        let what = "what is rotated is gathered by way of the host";
        (what, "use ResidentCompressor::exchange, or leave out rotate, eden and drive")
    } else if step < recipe.warm_up {
        let what = "the warm-up changes how many entries are sent, and memory is made for one number";
        (what, "use ResidentCompressor::exchange until it is over, or leave out warmup")
    } else {
        return Ok(());
    };
    Err(RecipeError::Stages { what, remedy }.into())
}
