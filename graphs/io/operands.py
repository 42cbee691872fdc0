"""How many inputs and outputs nodes have of ops that ONNX has not.

The counts of onnxruntime's ops are those that its 1.19.2 asks for; outputs that it wants named
although nobody reads them may be left out here.  Source: the message of its loader for a node of no
inputs, and of forty.  The others are ops of this package, whose artifacts hold them.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.kernels.vocabulary.op import MS, OURS

# An op, the least and the most of its inputs, the most of its outputs, and behind ? the places of
# inputs that may be absent although others follow that may not.
_TABLES = {
    MS: """
        AdamWOptimizer 6-8 4
        Attention 2-7 2
        BatchNormInternal 5-5 5
        BatchNormalizationGrad 5-5 3
        BiasFastGeluGrad_dX 3-3 1
        BiasGelu 2-2 1
        BiasGeluGrad_dX 3-3 1
        BroadcastGradientArgs 2-2 2
        ConcatTraining 1-* 2
        ConvGrad 3-3 3
        ConvTransposeGrad 3-3 3
        DequantizeLinear 2-3 1
        DivGrad 3-3 2
        DropoutGrad 2-4 1
        EmbedLayerNormalization 7-9 3 ?1 ?4
        FakeQuant 3-3 2
        FakeQuantGrad 2-2 1
        FastGelu 1-2 1
        FastGeluGrad 2-2 1
        FusedConv 2-4 1
        FusedGemm 2-3 1
        FusedMatMul 2-2 1
        GRUGrad 3-10 5
        GRUTraining 3-6 3
        GatherBlockQuantized 3-4 1
        GatherElementsGrad 3-3 1
        GatherGrad 3-3 1
        GatherNDGrad 3-3 1
        Gelu 1-1 1
        GeluGrad 2-2 1
        Group 1-* 1
        GroupNorm 3-3 1
        InPlaceAccumulator 2-3 1
        InPlaceAccumulatorV2 2-3 2
        InplaceClipGradNorm 1-1 1
        InvertibleLayerNormalizationGrad 5-5 3
        LSTMGrad 3-12 7
        LSTMTraining 3-8 5
        LayerNormalizationGrad 5-5 3
        LeakyReluGrad 2-2 1
        LogSoftmaxGrad 2-2 1
        LogSoftmaxGrad_13 2-2 1
        MatMulNBits 3-6 1
        MultiHeadAttention 1-10 4
        PassThrough 1-* *
        QuantizeLinear 2-3 1
        QuickGelu 1-1 1
        QuickGeluGrad 2-2 1
        ReduceAllL2 1-* 1
        ReduceSumTraining 2-2 1
        ReluGrad 2-2 1
        ResizeGrad 2-4 1
        RotaryEmbedding 4-4 1
        SGDOptimizerV2 3-5 2
        Scale 2-2 1
        SigmoidGrad 2-2 1
        SimplifiedLayerNormalizationGrad 4-4 2
        SkipLayerNormalization 3-5 4
        SkipSimplifiedLayerNormalization 3-4 4
        SliceGrad 4-6 1
        SoftmaxCrossEntropyLossGrad 3-4 1
        SoftmaxCrossEntropyLossInternal 2-4 2
        SoftmaxCrossEntropyLossInternalGrad 3-6 1
        SoftmaxGrad 2-2 1
        SoftmaxGrad_13 2-2 1
        SplitTraining 2-2 *
        TanhGrad 2-2 1
        ZeroGradient 2-2 1
    """,
    OURS: """
        AdafactorOptimizer 4-9 4
        AdagradOptimizer 4-9 4
        AdamOptimizer 4-9 4
        AdamWOptimizer 4-9 4
        AveragePoolGrad 2-2 1
        CTCLoss 4-4 1
        CTCLossGrad 5-5 1
        ChannelMoments 1-1 2
        Cotangent 1-1 1
        CumProdGrad 3-3 1
        FakeQuantMask 3-3 1
        FakeQuantValue 3-3 1
        GRUGrad 3-11 5
        GRUTraining 3-6 4
        GlobalMaxPoolGrad 2-2 1
        GradientSignal 2-* 1 ?0
        GridSampleGrad 3-3 2
        LSTMGrad 3-13 7
        LSTMTraining 3-8 5
        LambOptimizer 4-9 4
        LionOptimizer 4-9 4
        MaxPoolGrad 3-3 1
        MaxRoiPoolGrad 3-3 1
        QuantizeDequantize 3-3 1
        QuantizedConv 4-5 1
        QuantizedGather 3-4 1
        QuantizedMatMul 3-5 1
        RMSpropOptimizer 4-9 5
        RNNGrad 6-8 5 ?3 ?4
        RandomMask 1-1 1
        Redirect 4-4 1
        ResizeGrad 2-5 1
        RoiAlignGrad 4-4 1
        SGDOptimizer 4-9 4
        Standardize 1-1 3
        StandardizeGrad 4-4 1
        StopGradient 1-1 1
        SumPool 1-1 1
        SumPoolGrad 2-2 1
    """,
}
MANY = 2**31 - 1  # as many as one likes, as ONNX's schemas have it


class Operands(NamedTuple):
    """What a node of an op may have.

    inputs: the least and the most of them.  outputs: the most.
    absent: the places of inputs, of those that are needed, which may be absent.
    """

    inputs: tuple[int, int]
    outputs: int
    absent: frozenset[int]

    @classmethod
    def parse(cls, words: list[str]) -> Operands:
        """The counts of a line of the table, without the name of the op."""
        inputs, outputs, *absent = words
        least, _, most = inputs.partition("-")
        return cls((int(least), _most(most)), _most(outputs), frozenset(int(w[1:]) for w in absent))


def _most(text: str) -> int:
    return MANY if text == "*" else int(text)


OPERANDS = {
    (domain, line.split()[0]): Operands.parse(line.split()[1:])
    for domain, table in _TABLES.items()
    for line in table.strip().splitlines()
}
