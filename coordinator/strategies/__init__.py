"""The strategies, one in each file: LocalUpdate, GlobalModelUpdate and GlobalOptimUpdate of the paper's Table 1.

    strategy       LocalUpdate   GlobalModelUpdate   GlobalOptimUpdate
    fedavg         SGD           average             -
    fedavg-adam    Adam          average             average
    fedavgm        SGD           SGD with momentum   -
    fedadam        SGD           Adam                -
    fedyogi        SGD           Yogi                -
    fedadagrad     SGD           Adagrad             -
    scaffold       SGD           SGD                 -

Pure: no network, no clock, no thread, no disk.
"""
