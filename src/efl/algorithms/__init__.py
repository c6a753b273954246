"""What is computed: the algorithms, what may act around them, and how they are known by name."""

from efl.algorithms.apfl import APFL
from efl.algorithms.base import Algorithm, LocalWork, Part, RoundSettings, ServerState, Step, Update
from efl.algorithms.cafe import CAFe
from efl.algorithms.compression.codec import Codec, Uncompressed
from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.algorithms.compression.quantise import EightBit
from efl.algorithms.compression.signs import MajorityVote
from efl.algorithms.compression.support import SharedSupport
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.ditto import Ditto
from efl.algorithms.efl import EFL
from efl.algorithms.fedamp import FedAMP
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.fedcurv import FedCurv
from efl.algorithms.feddyn import FedDyn
from efl.algorithms.fedgate import FedGATE
from efl.algorithms.fednova import FedNova
from efl.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from efl.algorithms.fedper import FedBN, FedPer, FedRep
from efl.algorithms.fedprox import FedProx
from efl.algorithms.fedsmu import FedSMU
from efl.algorithms.mime import Mime
from efl.algorithms.registry import ALGORITHMS, codec_table, create, every_name, find, name_of, transform_tables
from efl.algorithms.run_round import Clients, run_round
from efl.algorithms.scaffold import Scaffold
from efl.algorithms.scallion import Scallion
from efl.algorithms.signsgd import SignSGD
from efl.algorithms.stc import STC
from efl.algorithms.transform import TRANSFORMS, Transform, chain
from efl.algorithms.transforms.clipping import ClipByNorm
from efl.algorithms.transforms.defence import Defence
from efl.algorithms.transforms.privacy import Privacy
from efl.algorithms.transforms.robust import CoordinateMedian, GeometricMedian, MultiKrum, TrimmedMean
from efl.algorithms.transforms.robust_mixing import Bucketing, CentredClipping, NearestNeighbourMixing
from efl.algorithms.transforms.server_optimisers import ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi
from efl.algorithms.transforms.staleness import StalenessDiscount
from efl.algorithms.vrlsgd import VRLSGD
