//! Reads the gzipped csv of 8x8 digit images, and splits it into images to learn from and images to test with.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use super::error::TrainError;
use super::random::Random;

/// Pixels of an image, 8 by 8.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// Rows of an image, and pixels of a row.
pub(crate) const SIDE: usize = 8;
/// Digits from 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// A pixel counts the dots of ink in a block of 4 by 4.
const MOST_INK: u32 = 16;
/// The real file unpacks to 260 kB. The limit keeps a wrong file from filling the memory.
const MOST_TEXT: u64 = 16 << 20;
/// One image of so many is for testing.
const TESTED: usize = 5;

/// Images with pixels from 0 to 1, one after another, and their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Images {
    pub(crate) pixels: Vec<f32>,
    pub(crate) labels: Vec<u32>,
}

impl Images {
    pub(crate) fn load(path: &Path) -> Result<Self, TrainError> {
        let io = |source| TrainError::Read { path: path.to_path_buf(), source };
        let mut text = String::new();
        GzDecoder::new(File::open(path).map_err(io)?).take(MOST_TEXT).read_to_string(&mut text).map_err(io)?;
        Self::parse(&text)
    }

    /// Each line holds the pixels of one image, row by row, and then its label.
    fn parse(text: &str) -> Result<Self, TrainError> {
        let mut images = Self::default();
        for (line, row) in text.lines().enumerate() {
            let bad = |found| TrainError::Digits { line: line + 1, found };
            let fields = row.split(',').map(|field| field.trim().parse()).collect::<Result<Vec<u32>, _>>();
            let fields = fields.map_err(|e| bad(format!("a field is not a whole number ({e})")))?;
            let Some((&label, pixels)) = fields.split_last().filter(|(_, pixels)| pixels.len() == PIXELS) else {
                return Err(bad(format!("it has {} fields", fields.len())));
            };
            if let Some(ink) = pixels.iter().find(|&&ink| ink > MOST_INK) {
                return Err(bad(format!("it has a pixel of {ink}")));
            }
            if label as usize >= CLASSES {
                return Err(bad(format!("its label is {label}")));
            }
            images.pixels.extend(pixels.iter().map(|&ink| ink as f32 / MOST_INK as f32));
            images.labels.push(label);
        }
        Ok(images)
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The images at these places.
    pub(crate) fn select(&self, places: &[usize]) -> Self {
        Self {
            pixels: places.iter().flat_map(|at| &self.pixels[at * PIXELS..][..PIXELS]).copied().collect(),
            labels: places.iter().map(|&at| self.labels[at]).collect(),
        }
    }

    /// Images to learn from and images to test with, in an order of the seed's.
    pub(crate) fn split(&self, seed: u64) -> (Self, Self) {
        let order = Random::new(seed).order(self.len());
        let (test, learn) = order.split_at(self.len() / TESTED);
        (self.select(learn), self.select(test))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ink: u32, label: u32) -> String {
        format!("{}{label}\n", format!("{ink},").repeat(PIXELS))
    }

    #[test]
    fn lines_become_images() {
        let images = Images::parse(&(line(0, 3) + &line(4, 9) + &line(16, 0))).unwrap();
        let picked = images.select(&[2, 1]);
        assert_eq!(picked.labels, [0, 9]);
        assert_eq!((picked.pixels[..PIXELS].to_vec(), picked.pixels[PIXELS]), (vec![1.0; PIXELS], 0.25));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (bad, found) in [
            ("1,2,3\n".to_owned(), "3 fields"),
            (line(17, 1), "pixel of 17"),
            (line(1, 10), "label is 10"),
            (line(1, 1).replacen('1', "-1", 1), "not a whole number"),
            ("\n".to_owned(), "not a whole number"),
        ] {
            let error = Images::parse(&(line(1, 1) + &bad)).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(found), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_no_gzip_is_named() {
        for path in ["no/such.csv.gz", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
            let error = Images::load(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("--digits"), "{error}");
        }
    }

    #[test]
    fn a_split_has_each_image_once() {
        let text: String = (0..10).map(|at| line(at, at)).collect();
        let images = Images::parse(&text).unwrap();
        let (learn, test) = images.split(1);
        assert_eq!((learn.len(), test.len()), (8, 2));
        let mut labels = [learn.labels, test.labels].concat();
        labels.sort_unstable();
        assert_eq!(labels, images.labels);
    }
}
