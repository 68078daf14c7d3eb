"""tanh and erf: odd functions that go to 1, with a polynomial near 0 and 1 - (small) further out."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Code, Value

from .exponential import exp
from .floats import by_layout, limited, magnitude, polynomial, with_sign

# (tanh(x) / x - 1) / x**2 as a polynomial of x**2, |x| <= 0.625.
_TANH_32 = (
    -0.3333328366279602, 0.133314847946167, -0.0537429116666317, 0.020648572593927383,
    -0.0057146851904690266,
)  # fmt: skip
_TANH_64 = (
    -0.3333333333333333, 0.1333333333333316, -0.05396825396813157, 0.021869488531744193,
    -0.008863235436000637, 0.003592126749316658, -0.0014558224299337833, 0.0005899499183543352,
    -0.00023877320532572833, 9.575658516628465e-05, -3.6633718795687494e-05, 1.1801675274322263e-05,
    -2.27447773052979e-06,
)  # fmt: skip
# erf(x) / x - 1 as a polynomial of x**2, |x| <= 0.95.
_ERF_32 = (
    0.12837916612625122, -0.37612631916999817, 0.11283671855926514, -0.026858074590563774,
    0.005197726655751467, -0.0008105200831778347, 8.212339162128046e-05,
)  # fmt: skip
_ERF_64 = (
    0.12837916709551256, -0.3761263890318368, 0.11283791670951396, -0.026866170644355862,
    0.005223977617111143, -0.0008548326494822261, 0.0001205531168526152, -1.4925084180900373e-05,
    1.6452031622904702e-06, -1.624636356583317e-07, 1.3895801313742399e-08, -8.147499538072043e-10,
)  # fmt: skip
# erfc(x) exp(x**2) as a polynomial of 1 / (x + 2), x from 0.94 to 4 and to 6.
_ERFC_32 = (
    0.0023113293573260307, 0.50907301902771, 1.6778275966644287, -0.9383655786514282,
    11.292391777038574, -8.923059463500977, 0.8882126212120056,
)  # fmt: skip
_ERFC_64 = (
    -2.74400536533265e-06, 0.5643383743198584, 1.1246790413346528, 2.0303342174004118,
    2.259136934825586, 6.649073178443942, -20.009880443232817, 58.78575630772388,
    -137.0394429179253, -28.969928808657393, 923.6882903739972, -2282.7871577606743,
    2800.160325081405, -1826.9620808303202, 510.578129346863,
)  # fmt: skip


def tanh(code: Code, x: Value) -> Value:
    """Hyperbolic tangent: near 0 x + x**3 P(x**2), else 1 - 2 / (exp(2 x) + 1)."""
    a = limited(code, magnitude(code, x), 0.0, by_layout(x, 10.0, 20.0))  # beyond, it is 1
    z = a * a
    near = code.fma(a, z * polynomial(code, z, by_layout(x, _TANH_32, _TANH_64)), a)
    far = 1.0 - 2.0 / (exp(code, a + a) + 1.0)
    return with_sign(code, code.select(a < 0.625, near, far), x)


def erf(code: Code, x: Value) -> Value:
    """Error function: near 0 x + x P(x**2), else 1 - exp(-x**2) Q(1 / (x + 2))."""
    a = limited(code, magnitude(code, x), 0.0, by_layout(x, 4.0, 6.0))  # beyond, it is 1
    z = a * a
    near = code.fma(a, polynomial(code, z, by_layout(x, _ERF_32, _ERF_64)), a)
    rest = polynomial(code, 1.0 / (a + 2.0), by_layout(x, _ERFC_32, _ERFC_64))
    far = 1.0 - exp(code, -z) * rest
    return with_sign(code, code.select(a < 0.945, near, far), x)
