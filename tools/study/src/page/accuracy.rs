//! The section of accuracies, which were measured, and what they say beside the papers.

use gradwire::Recipe;

use super::table::{head, row};
use crate::train::{LOW_PRECISION, Layers, PER_COLUMN, RATE, Row, SIGNS_RATE, Study, Trained, sends_signs};

/// All seeds of a training.
struct Ends {
    /// The mean, and the least and the most of all seeds.
    accuracy: [f64; 3],
    loss: f64,
    bytes: f64,
    whole: f64,
    /// Images of all seeds.
    tested: f64,
    recipe: String,
}

impl Ends {
    fn of(trained: &Trained, is: impl Fn(&Row) -> bool) -> Result<Self, String> {
        let rows: Vec<&Row> = trained.rows.iter().filter(|row| is(row)).collect();
        let Some(first) = rows.first() else {
            return Err("a training is missing; run cargo xtask study --train".into());
        };
        let mean = |of: fn(&Row) -> f64| rows.iter().map(|row| of(row)).sum::<f64>() / rows.len() as f64;
        let accuracies = || rows.iter().map(|row| row.accuracy);
        Ok(Self {
            accuracy: [
                mean(|row| row.accuracy),
                accuracies().fold(f64::INFINITY, f64::min),
                accuracies().fold(0.0, f64::max),
            ],
            loss: mean(|row| row.loss),
            bytes: mean(|row| row.bytes),
            whole: first.whole,
            tested: rows.iter().map(|row| row.tested as f64).sum(),
            recipe: first.recipe.clone(),
        })
    }

    /// What two trainings that are equally good may differ in: three standard errors of the difference of two
    /// accuracies, taken as independent.
    fn noise(&self) -> f64 {
        let [p, ..] = self.accuracy;
        3.0 * (2.0 * p * (1.0 - p) / self.tested).sqrt()
    }

    /// Whether it is not behind another one.
    fn is_near(&self, other: &Self) -> bool {
        self.accuracy[0] >= other.accuracy[0] - other.noise()
    }

    fn cells(&self) -> [String; 4] {
        let [mean, least, most] = self.accuracy.map(|accuracy| 100.0 * accuracy);
        [
            format!("{mean:.1} ({least:.1} to {most:.1})"),
            format!("{:.3}", self.loss),
            format!("{:.0}", self.bytes),
            format!("{:.1}", self.whole / self.bytes),
        ]
    }
}

/// What the numbers say of a paper's claims.
#[derive(Default)]
struct Claims {
    hold: Vec<String>,
    fail: Vec<String>,
}

impl Claims {
    fn add(&mut self, holds: bool, text: String) {
        if holds { self.hold.push(text) } else { self.fail.push(text) }
    }

    fn write(&self, text: &mut String) {
        for (heading, claims) in [("As in the paper: ", &self.hold), ("Not as in the paper: ", &self.fail)] {
            if !claims.is_empty() {
                text.push('\n');
                wrapped(text, &format!("{heading}{}.", claims.join("; ")));
            }
        }
    }
}

/// A paragraph in lines of 118 columns at most.
fn wrapped(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in paragraph.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 118 {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

fn all_of(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The whole section.
pub(crate) fn accuracy(text: &mut String, trained: &Trained) -> Result<(), String> {
    let Trained { date, commit, cpu, ranks, epochs, rows } = trained;
    let seeds = rows.iter().map(|row| row.seed).max().unwrap_or(0);
    let steps = rows.first().map_or(0, |row| row.steps);
    let day = date.split('T').next().unwrap_or(date);
    text.push_str("\n## Accuracy, measured\n\n");
    let noise = Ends::of(trained, |row| is(row, Study::Grace, "none", Layers::Convolutions, RATE))?.noise();
    wrapped(
        text,
        &format!(
            "This section alone was measured, by `cargo xtask study --train` on {day} at commit {commit} ({cpu}); a test holds it to \
             `benches/studies/train.json` and trains nothing. The example `train` learns images of digits, {ranks} ranks that are \
             threads, {epochs} epochs or {steps} steps of 64 images, each with {seeds} seeds for images, first parameters and draws. \
             An accuracy is the mean over the seeds, with the least and the most. Near another one is what is not further below it \
             than three standard errors of a difference, {:.1} percentage points beside none. Bytes are those that a rank hands over \
             in a step; the factor is by how much they are fewer than a gradient's.",
            100.0 * noise
        ),
    );
    low_precision(text, trained)?;
    grace(text, trained)
}

fn is(row: &Row, study: Study, name: &str, layers: Layers, rate: f64) -> bool {
    row.study == study && row.name == name && row.layers == layers && row.rate == rate
}

fn low_precision(text: &mut String, trained: &Trained) -> Result<(), String> {
    text.push_str("\n### Low precision (Grubic et al., EDBT 2018)\n\n");
    wrapped(
        text,
        "Three full layers of 17226 parameters, and two convolutions with a full layer of 9930. All codecs go in two phases, one bit \
         with error feedback, QSGD without it and by the largest magnitude of a bucket. A column is one output's weights; those of \
         convolutions are shorter than the least bucket, and were not trained. Two phases hand over 1.5 payloads here, where a sum \
         counts as one gradient.",
    );
    text.push('\n');
    head(text, &["codec", "network", "recipe", "accuracy, %", "loss", "bytes per step", "factor"]);
    let names: Vec<&str> = LOW_PRECISION.iter().map(|(name, _)| *name).collect();
    let names = [&names[..1], &[PER_COLUMN], &names[1..]].concat();
    let mut near: Vec<(&str, bool)> = Vec::new();
    for (layers, network) in [(Layers::Full, "full"), (Layers::Convolutions, "convolutions")] {
        let of = |name: &str| Ends::of(trained, |row| is(row, Study::LowPrecision, name, layers, RATE));
        let whole = of("32 bit")?;
        for name in names.iter().filter(|name| layers == Layers::Full || **name != PER_COLUMN) {
            let ends = of(name)?;
            near.push((name, ends.is_near(&whole)));
            let cells = [(*name).to_owned(), network.to_owned(), format!("`{}`", ends.recipe)];
            row(text, cells.into_iter().chain(ends.cells()));
        }
    }
    let everywhere = |name: &str| near.iter().filter(|(other, _)| *other == name).all(|(_, near)| *near);
    let said = |name: &str| if everywhere(name) { "ends near" } else { "ends behind" };
    let mut claims = Claims::default();
    for name in ["QSGD 4 / 512", "QSGD 8 / 512", "QSGD 16 / 8192"] {
        claims.add(everywhere(name), format!("{name} {} 32 bits", said(name)));
    }
    for name in [PER_COLUMN, "1 bit / 64"] {
        claims.add(everywhere(name), format!("{name}, with feedback, {} 32 bits", said(name)));
    }
    claims.write(text);
    text.push('\n');
    let two = "QSGD 2 / 128";
    wrapped(
        text,
        &format!(
            "Two bits may lose in the paper. Here {two} {} 32 bits; these networks are small, and say little of large ones.",
            said(two)
        ),
    );
    Ok(())
}

fn grace(text: &mut String, trained: &Trained) -> Result<(), String> {
    text.push_str("\n### GRACE's methods (Xu et al., ICDCS 2021)\n\n");
    wrapped(
        text,
        &format!(
            "The network of convolutions. All methods train at one rate, {RATE}; those that send signs alone at {SIGNS_RATE} too, since \
             a step of theirs is as long as the rate."
        ),
    );
    text.push('\n');
    head(text, &["method", "rate", "recipe", "accuracy, %", "loss", "bytes per step", "factor"]);
    let of = |name: &str, rate: f64| Ends::of(trained, |row| is(row, Study::Grace, name, Layers::Convolutions, rate));
    let none = of("none", RATE)?;
    let (mut feedback, mut without, mut signs) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    let mut of_their_own = Vec::new();
    for method in Recipe::methods() {
        let recipe: Recipe = method.recipe.parse().map_err(|error| format!("{}: {error}", method.recipe))?;
        let rates: &[f64] = if sends_signs(method.name) { &[RATE, SIGNS_RATE] } else { &[RATE] };
        for rate in rates {
            let ends = of(method.name, *rate)?;
            let near = ends.is_near(&none);
            match (sends_signs(method.name), recipe.memory().feedback) {
                (true, _) if *rate == RATE => signs[usize::from(!near)].push(method.name),
                (true, _) => of_their_own.push(format!(
                    "{} at {rate} ends {} it, with {:.1} %",
                    method.name,
                    if near { "near" } else { "behind" },
                    100.0 * ends.accuracy[0]
                )),
                (false, true) => feedback[usize::from(!near)].push(method.name),
                (false, false) if method.name != "none" => without[usize::from(!near)].push(method.name),
                _ => {}
            }
            let cells = [method.name.to_owned(), rate.to_string(), format!("`{}`", method.recipe)];
            row(text, cells.into_iter().chain(ends.cells()));
        }
    }
    let mut claims = Claims::default();
    let [near, behind] = &feedback;
    if !near.is_empty() {
        claims.add(true, format!("of the methods with feedback, {} end near no compression", all_of(near)));
    }
    if !behind.is_empty() {
        claims.add(false, format!("of the methods with feedback, {} end behind no compression", all_of(behind)));
    }
    let [near, behind] = &signs;
    if !behind.is_empty() {
        claims.add(true, format!("signs without feedback, {}, are behind at the rate of all", all_of(behind)));
    }
    if !near.is_empty() {
        claims.add(false, format!("signs without feedback, {}, are near at the rate of all", all_of(near)));
    }
    claims.write(text);
    let [near, behind] = &without;
    text.push('\n');
    wrapped(
        text,
        &format!(
            "What the paper's ordering does not say: {}. Of the methods without feedback {} end near no compression, and {} behind it.",
            of_their_own.join("; "),
            all_of(near),
            all_of(behind)
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train;

    /// Results with every row, in which all accuracies are alike but those of some names.
    fn made(other: &[&str], accuracy: f64) -> Trained {
        let mut trained = train::trained().expect("committed");
        for row in &mut trained.rows {
            row.accuracy = if other.contains(&row.name.as_str()) { accuracy } else { 0.98 };
        }
        trained
    }

    fn section(trained: &Trained) -> String {
        let mut text = String::new();
        accuracy(&mut text, trained).expect("all rows are there");
        text.replace('\n', " ")
    }

    #[test]
    fn what_is_said_follows_from_the_rows() {
        let text = section(&made(&[], 0.0));
        assert!(text.contains("QSGD 4 / 512 ends near 32 bits") && text.contains("Here QSGD 2 / 128 ends near"));
        assert!(text.contains("Not as in the paper: signs without feedback, signsgd and signum, are near"), "{text}");
        let text = section(&made(&["QSGD 4 / 512", "QSGD 2 / 128", "signsgd", "signum", "topk"], 0.9));
        assert!(text.contains("Not as in the paper: QSGD 4 / 512 ends behind 32 bits"), "{text}");
        assert!(text.contains("Here QSGD 2 / 128 ends behind") && text.contains("topk end behind no compression"));
        assert!(text.contains("signs without feedback, signsgd and signum, are behind at the rate of all"), "{text}");
        assert!(text.contains("signsgd at 0.001 ends behind it, with 90.0 %"), "{text}");
    }

    #[test]
    fn what_is_within_three_standard_errors_is_near() {
        // 3 * sqrt(2 * 0.98 * 0.02 / tested).
        let ends = |accuracy: f64| {
            let trained = made(&["topk"], accuracy);
            Ends::of(&trained, |row| is(row, Study::Grace, "topk", Layers::Convolutions, RATE)).expect("a row")
        };
        let none = ends(0.98);
        let apart = 3.0 * (2.0 * 0.98 * 0.02 / none.tested).sqrt();
        assert!((none.noise() - apart).abs() < 1e-12);
        assert!(ends(0.98 - 0.99 * apart).is_near(&none) && !ends(0.98 - 1.01 * apart).is_near(&none));
    }

    #[test]
    fn the_committed_rows_are_of_the_whole_setting() {
        let Trained { epochs, rows, ranks, .. } = train::trained().expect("committed");
        assert_eq!((epochs, ranks), (train::EPOCHS, 4));
        assert!(!rows.is_empty());
        for row in &rows {
            let alike = rows.iter().filter(|other| {
                (other.study, &other.name, other.layers, other.rate) == (row.study, &row.name, row.layers, row.rate)
            });
            let mut found: Vec<u64> = alike.map(|row| row.seed).collect();
            found.sort_unstable();
            assert_eq!(found, (1..=train::SEEDS).collect::<Vec<_>>(), "{}", row.name);
        }
    }
}
