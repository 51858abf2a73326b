//! Any text, as a recipe.

use gradwire::{Compressor, Error, Policy, Recipe};
use gradwire_tests::cases;
use gradwire_tests::meter::bounded;

use crate::models::{bits, device, held, tensors};
use crate::pair::Pair;

/// Bytes that reading a text may hold: it is short, and an error quotes it and all that could stand there.
const HELD: u64 = 1 << 16;

/// The target `recipes`: bytes as a text, those that are none replaced; and a step of a small model with its recipe.
///
/// # Errors
/// Why it was refused, or why its recipe does not fit the model.
///
/// # Panics
/// Where a text that is taken is printed as one of another recipe; where a step with its recipe fails and changes
/// something; where reading holds more memory than a text may take.
pub fn recipes(bytes: &[u8]) -> Result<(), Error> {
    let text = String::from_utf8_lossy(bytes);
    let recipe = bounded("Recipe::from_str", HELD + 8 * text.len() as u64, || text.parse::<Recipe>());
    let recipe = recipe.inspect_err(|error| assert!(!error.to_string().is_empty(), "no text: {error:?}"))?;
    let printed = recipe.to_string();
    let again: Recipe = printed.parse().unwrap_or_else(|error| panic!("{text:?} is printed as {printed:?}: {error}"));
    assert_eq!(again, recipe, "{text:?} is printed as {printed:?}, which is another");
    assert_eq!(again.to_string(), printed, "the same recipe is printed otherwise");
    let _ = recipe.promise(240);
    let mut compressor = Compressor::with_policy(&Policy::new(recipe)?.small(16), &tensors(), 7)?;
    for number in 0..2 {
        let gradient = cases::normal(compressor.elements(), number);
        let (mut mean, before) = (gradient.clone(), held(&compressor));
        let swap = |mine: &[u8]| Ok(mine.to_vec().into());
        let done = compressor.exchange(device(), &mut Pair { rank: 0, swap }, &mut mean);
        if let Err(error) = done {
            assert_eq!(bits(&mean), bits(&gradient), "{printed}: a gradient that a step changed which failed");
            assert!(held(&compressor) == before, "{printed}: a state that a step changed which failed");
            return Err(error);
        }
    }
    Ok(())
}
