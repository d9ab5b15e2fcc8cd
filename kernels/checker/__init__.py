"""Runs Metal bodies on a Linux CPU and finds races, accesses out of bounds and reads of unwritten memory."""

from tqcli.kernels.checker.check import check, check_all
from tqcli.kernels.checker.compiler import CompilerError
from tqcli.kernels.checker.finding import Checked, Finding

__all__ = ["Checked", "CompilerError", "Finding", "check", "check_all"]
