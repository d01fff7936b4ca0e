"""The CPU waits for the next batch."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

DATA_LOADING = Account(
    "idle.data_loading",
    label="data loading",
    said_by_group=WHILE,
    meaning=LATE + "waits for the next batch.",
    found="Ranges and frames of data loaders on that thread: `enumerate(DataLoader)#…__next__`, or an NVTX "
    "range named after loading.",
    remedy="Give the loader worker processes (`num_workers`; with them `persistent_workers=True` saves the "
    "start of each epoch), or preprocess once instead of in every epoch. A larger `prefetch_factor` "
    "helps against slow single samples, never against a loader that is too slow on average.",
    order=20,
    verdict="Input-bound",
    makes_late="its data loader makes",
    spent="of data loading",
    loss=Loss(
        "data-loading-starves-device",
        "waiting for the data loader",
        0.05,
        remedies=("loader-workers", "tokenise-ahead"),
        edit="loader=0ms",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("range", "operator"),
            ("enumerate(DataLoader)#",),
            "PyTorch, around every batch taken from a loader; an operator in traces of 2021",
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        ),
        CausePattern(
            ("frame",),
            ("torch/utils/data/",),
            "PyTorch, the loader, its workers' fetching and collating, data pipes, dataset wrappers",
            "torch/utils/data/dataloader.py(720): __next__",
            also=r"torch/utils/data/(?:dataloader|dataset|_utils/\w+|datapipes/[\w/]+)\.py\(",
        ),
        CausePattern(
            ("frame",),
            ("webdataset/", "torchdata/", "nvidia/dali/", "streaming/base/", "ffcv/", "litdata/"),
            "loaders: WebDataset, TorchData, DALI, MosaicML Streaming, FFCV, LitData",
            "site-packages/webdataset/pipeline.py(68): iterator",
            also=r"(?:^|/)(?:webdataset|torchdata|nvidia/dali|streaming/base|ffcv|litdata)/",
        ),
        CausePattern(
            ("frame",),
            ("datasets/",),
            "Hugging Face Datasets and Megatron, reading samples",
            "datasets/arrow_dataset.py(2777): __getitem__",
            also=r"(?:^|/)datasets/(?:arrow_dataset|iterable_dataset|formatting/\w+)\.py\("
            r"|megatron/core/datasets/",
        ),
        CausePattern(
            ("frame",),
            ("get_batch",),
            "Megatron and others, functions that fetch the next batch",
            "pretrain_gpt.py(81): get_batch",
            also=r"\.py\(\d+\): get_batch(?:_on_this_tp_rank)?$",
        ),
        CausePattern(
            ("range",),
            (
                "dataloader",
                "DataLoader",
                "Dataloader",
                "data_load",
                "data-loading",
                "data loading",
                "batch-generator",
                "get_batch",
                "next_batch",
                "fetch_batch",
                "load_batch",
                "[DALI]",
            ),
            "ranges that name their work: Megatron, Lightning, DALI, training scripts",
            "## data_load ##",
        ),
        CausePattern(
            ("range",),
            ("next(", "next ("),
            "training scripts, around the call that takes a batch from a loader or its iterator",
            "next(data_iter)",
            also=r"^next ?\([\w.]*(?i:data|batch|loader|iter)[\w.]*\)$",
        ),
        CausePattern(
            ("range",),
            ("data", "Data", "DATA", "batch", "Batch", "input", "Input"),
            "training scripts' phases beside forward and backward: data, load data, next batch, fetch inputs",
            "data",
            also=r"(?i)^(?:(?:train|training)[ _.:/-]*)?(?:data|inputs?)"
            r"(?:[ _.:/-]*(?:wait|time|fetch\w*|load\w*|iter|next|prep\w*|pipeline))?$"
            # `prepare_inputs` of the Trainer moves what was loaded to the device.
            r"|^(?:(?:load|fetch|next|get|read|wait for)[ _.:/-]*(?:the )?(?:next )?(?:data|batch|inputs?)"
            r"|prepare[ _.:/-]*(?:the )?(?:next )?(?:data|batch))$",
        ),
    ),
)
