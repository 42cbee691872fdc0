//! Training from Rust: cargo run --example example -- ../checkpoint out

use @name@::{Dtype, Error, Model, Phase, Values};

/// A batch for one input; a program would read its own here.
enum Batch {
    Floats(Vec<f32>),
    Labels(Vec<i64>),
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let mut model = Model::create(&arguments[1])?;
    let mut state = 1u32;
    let mut draw = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    model.set_learning_rate(0.01)?;
    for step in 1..=20 {
        let mut batches = Vec::new();
        for index in 0..model.input_count(Phase::Train) {
            let tensor = model.input_info(Phase::Train, index).expect("it is counted");
            let count = tensor.dims.iter().product::<i64>() as usize;
            batches.push(match tensor.dtype {
                Dtype::F32 => Batch::Floats((0..count).map(|_| draw() as f32 / (1 << 24) as f32).collect()),
                _ => Batch::Labels((0..count).map(|_| i64::from(draw() % 2)).collect()),
            });
        }
        let inputs: Vec<Values> = batches
            .iter()
            .map(|batch| match batch {
                Batch::Floats(values) => values[..].into(),
                Batch::Labels(values) => values[..].into(),
            })
            .collect();
        model.train_step(&inputs)?;
        let loss = model.floats(Phase::Train, 0)?[0];
        if !model.is_joined() {
            model.optimizer_step()?;
        }
        model.lazy_reset_grad();
        println!("step {step}: loss {loss}");
    }
    model.save(&arguments[2], true)
}
