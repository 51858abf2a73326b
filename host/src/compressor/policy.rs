//! Which tensor of a model has which recipe.

use crate::error::{Error, RecipeError};
use crate::plan::NonFinite;
use crate::recipe::Recipe;

/// A tensor of a model, as a policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name, as in `encoder.0.weight`. Empty if it has none.
    pub name: String,
    /// Its sides. The gradient holds its elements in row-major order.
    pub shape: Vec<u64>,
}

impl Tensor {
    /// A tensor with a name.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<u64>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// Whether fewer than two of its sides are 2 or more.
    fn is_vector(&self) -> bool {
        self.shape.iter().filter(|side| **side > 1).count() < 2
    }

    /// Its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, side| product.saturating_mul(*side))
    }
}

/// Which recipe each tensor of a model has.
///
/// Tensors of fewer than 1024 elements, and vectors of fewer than 65536, go uncompressed: biases and the scales of
/// norms are a small part of the traffic, and their errors cost more than they save. All others have the policy's
/// recipe, unless a rule says otherwise. Of several rules that fit a tensor, the first counts; a rule counts for small
/// tensors too.
///
/// ```
/// use gradwire::{Policy, Recipe, Tensor};
/// let policy = Policy::new("qsgd:bits=4,bucket=64+ef")?.named("*embedding*", "topk:0.001+ef")?.at_least(1 << 20, "powersgd:rank=4")?;
/// let recipe = |name, shape: [u64; 2]| policy.recipe(&Tensor::new(name, shape)).to_string();
/// assert_eq!(recipe("token_embedding.weight", [50_000, 768]), "topk:0.001+ef");
/// assert_eq!(recipe("block.0.weight", [768, 3072]), "powersgd:rank=4");
/// assert_eq!(recipe("block.0.key", [64, 64]), "qsgd:bits=4,bucket=64+ef");
/// assert_eq!(recipe("block.0.mask", [8, 8]), "none");
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    recipe: Recipe,
    small: u64,
    small_vectors: u64,
    rules: Vec<(Rule, Recipe)>,
    all_reduce_only: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Named(String),
    AtLeast(u64),
    Vector,
}

impl Policy {
    /// This recipe for all tensors that are not small.
    ///
    /// # Errors
    /// What a text or the recipe's stages are refused for: [`Error::Recipe`].
    pub fn new<R: TryInto<Recipe>>(recipe: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        let recipe = checked(recipe)?;
        Ok(Self { recipe, small: 1024, small_vectors: 65536, rules: Vec::new(), all_reduce_only: false })
    }

    /// Tensors of fewer elements go uncompressed, with the recipe's momentum if it has one. The default is 1024; 0
    /// compresses all, vectors as well.
    pub fn small(mut self, elements: u64) -> Self {
        (self.small, self.small_vectors) = (elements, elements);
        self
    }

    /// Tensors with fewer than two sides of 2 or more, and with fewer elements, go uncompressed. The default is 65536.
    pub fn small_vectors(mut self, elements: u64) -> Self {
        self.small_vectors = elements;
        self
    }

    /// Another recipe for tensors of this name, where `*` stands for any characters, or none.
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn named<R: TryInto<Recipe>>(mut self, pattern: &str, recipe: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        self.rules.push((Rule::Named(pattern.into()), checked(recipe)?));
        Ok(self)
    }

    /// Another recipe for tensors of this many elements or more.
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn at_least<R: TryInto<Recipe>>(mut self, elements: u64, recipe: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        self.rules.push((Rule::AtLeast(elements), checked(recipe)?));
        Ok(self)
    }

    /// Another recipe for vectors: tensors with fewer than two sides of 2 or more.
    ///
    /// DeMo's code transforms 64 elements of a vector at a time, and sends as many coefficients of those as of a square
    /// of 64 x 64 of a matrix. Here they are a square of 8 x 8:
    ///
    /// ```
    /// use gradwire::{Policy, Tensor};
    /// let demo = Policy::new("dct:tiles+topk:k=32,block=4096,clamped+ef:beta=0.999")?
    ///     .vectors("dct:block=8+topk:k=32,block=64,clamped+ef:beta=0.999")?;
    /// let recipe = |shape: [u64; 2]| demo.recipe(&Tensor::new("", shape)).to_string();
    /// assert_eq!(recipe([1, 768]), "dct:block=8+topk:k=32,block=64,clamped+ef:beta=0.999");
    /// assert_eq!(recipe([768, 768]), "dct:tiles+topk:k=32,block=4096,clamped+ef:beta=0.999");
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn vectors<R: TryInto<Recipe>>(mut self, recipe: R) -> Result<Self, Error>
    where
        Error: From<R::Error>,
    {
        self.rules.push((Rule::Vector, checked(recipe)?));
        Ok(self)
    }

    /// For a network that sums on the way and gathers nothing: a recipe whose payloads cannot be summed is refused when
    /// the compressor is made.
    pub fn all_reduce_only(mut self) -> Self {
        self.all_reduce_only = true;
        self
    }

    /// The recipe of a tensor.
    pub fn recipe(&self, tensor: &Tensor) -> Recipe {
        let elements = tensor.elements();
        let fits = |rule: &Rule| match rule {
            Rule::Named(pattern) => matches(pattern, &tensor.name),
            Rule::AtLeast(least) => elements >= *least,
            Rule::Vector => tensor.is_vector(),
        };
        if let Some((_, recipe)) = self.rules.iter().find(|(rule, _)| fits(rule)) {
            return recipe.clone();
        }
        if elements < self.small || tensor.is_vector() && elements < self.small_vectors {
            // Momentum is of all tensors, or some would be trained without.
            return self.recipe.uncompressed();
        }
        self.recipe.clone()
    }

    pub(super) fn is_all_reduce_only(&self) -> bool {
        self.all_reduce_only
    }

    /// Refuses a recipe that the network cannot carry.
    pub(super) fn expect_exchange(&self, recipe: &Recipe) -> Result<(), Error> {
        match self.all_reduce_only {
            true if !recipe.is_linear() => Err(RecipeError::NotLinear { recipe: recipe.to_string() }.into()),
            // A rank that refuses its gradient tells the others in a gather.
            true if recipe.non_finite == NonFinite::Error => {
                let remedy = "leave out finite, or Policy::all_reduce_only";
                Err(RecipeError::Stages { what: "finite needs a gather of what ranks refuse", remedy }.into())
            }
            true if recipe.peers_bound().is_some() => {
                let remedy = "leave out peers, or Policy::all_reduce_only";
                Err(RecipeError::Stages { what: "a bound on what a rank sends needs a gather", remedy }.into())
            }
            _ => Ok(()),
        }
    }
}

fn checked<R: TryInto<Recipe>>(recipe: R) -> Result<Recipe, Error>
where
    Error: From<R::Error>,
{
    let recipe = recipe.try_into()?;
    recipe.check()?;
    Ok(recipe)
}

/// Whether a name is one that the pattern stands for.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let front = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(front) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    // Each part at its first place leaves the most for the others.
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}
