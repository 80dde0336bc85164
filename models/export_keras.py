"""Rebuild the model exported by Keras: python models/export_keras.py (needs tensorflow, keras and tf2onnx)."""

from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, 6), name="x")
    hidden = keras.layers.Bidirectional(keras.layers.GRU(10, return_sequences=True))(inputs)
    outputs = keras.layers.Dense(2, name="scores")(keras.layers.LSTM(8)(hidden))
    model = keras.Model(inputs, outputs)
    model(np.zeros((1, 5, 6), np.float32))  # an export wants a model that was called
    model.export(HERE / "keras_gru_lstm.onnx", format="onnx", verbose=False)


if __name__ == "__main__":
    main()
