//! Every method in Rust with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS.

use mnist::{Error, Model, Phase, Values};

enum Numbers {
    Floats(Vec<f32>),
    Longs(Vec<i64>),
}

impl Numbers {
    fn read(word: &str) -> Numbers {
        let (kind, rest) = word.split_once('*').unwrap();
        let (count, value) = rest.split_once('=').unwrap();
        let count = count.parse().unwrap();
        match kind {
            "f" => Numbers::Floats(vec![value.parse().unwrap(); count]),
            _ => Numbers::Longs(vec![value.parse().unwrap(); count]),
        }
    }

    fn values(&self) -> Values<'_> {
        match self {
            Numbers::Floats(values) => values[..].into(),
            Numbers::Longs(values) => values[..].into(),
        }
    }
}

fn inputs(word: &str) -> Vec<Numbers> {
    if word == "none" {
        return Vec::new();
    }
    word.split(',').map(Numbers::read).collect()
}

fn borrow(numbers: &[Numbers]) -> Vec<Values<'_>> {
    numbers.iter().map(Numbers::values).collect()
}

fn text(word: &str) -> String {
    let digit = |k: usize| u8::from_str_radix(&word[k..k + 2], 16).unwrap();
    String::from_utf8((1..word.len()).step_by(2).map(digit).collect()).unwrap()
}

fn int(word: &str) -> i32 {
    word.parse().unwrap()
}

fn long(word: &str) -> i64 {
    word.parse().unwrap()
}

fn size(word: &str) -> usize {
    word.parse().unwrap()
}

fn float(word: &str) -> f32 {
    f32::from_bits(word.parse().unwrap())
}

fn flag(word: &str) -> bool {
    word != "0"
}

fn phase(word: &str) -> Phase {
    Phase::from_number(int(word)).unwrap()
}

fn bytes(word: &str) -> Vec<u8> {
    std::fs::read(word).unwrap()
}

/// What a method returned, as a line has it.
trait Answer {
    fn tell(&self) -> String;
}

macro_rules! tell_numbers {
    ($($kind:ty),*) => {$(
        impl Answer for $kind {
            fn tell(&self) -> String {
                format!(" {self}")
            }
        }
    )*};
}

tell_numbers!(i32, i64, usize);

impl Answer for bool {
    fn tell(&self) -> String {
        format!(" {}", *self as i32)
    }
}

impl<T> Answer for Option<T> {
    fn tell(&self) -> String {
        if self.is_some() { " some" } else { " none" }.to_string()
    }
}

fn call(name: &str, m: &mut Model, w: &[&str]) -> Result<String, Error> {
    match name {
/*@rows@*/
        _ => panic!("no call {name}"),
    }
}

fn make(row: &[&str], m: &mut Model) -> String {
    match call(row[1], m, &row[2..]) {
        Ok(answer) => format!("ok{answer}"),
        Err(error) => format!("{} {error}", error.code as i32),
    }
}

fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let mut live = Model::create(&arguments[1])?;
    let mut bare = Model::create_without_values()?;
    let content = std::fs::read_to_string(&arguments[2])?;
    let rows: Vec<Vec<&str>> = content.lines().map(|line| line.split(' ').collect()).collect();
    for (index, row) in rows.iter().enumerate() {
        let before = live.checkpoint(true)?;
        let said = make(row, if row[0] == "live" { &mut live } else { &mut bare });
        let is_same = said.starts_with("ok") || before == live.checkpoint(true)?;
        println!("{index} {said}{}", if is_same { "" } else { " changed" });
    }
    let rounds: usize = arguments[3].parse()?;
    let mut first = 0;
    for turn in 0..rounds {
        for row in &rows {
            make(row, if row[0] == "live" { &mut live } else { &mut bare });
        }
        first = if turn == rounds / 2 { resident() } else { first };
    }
    println!("grown {}", (resident() - first).max(0) >> 20);
    Ok(())
}
