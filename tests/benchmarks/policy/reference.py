"""What the policy study measured ("Acceptance scenarios"): seconds of makespan, four seeds."""

BOUNDS = {
    "X1 fixed-mini": (1006, 853, 664, 1233),
    "X2 fixed-weka": (12688, 11306, 7861, 12688),
    "S1 mini-env": (1732, 1703, 1325, 2041),
    "S2 mini-bal": (866, 852, 663, 1021),
    "S3 mini-mem": (866, 852, 663, 1084),
    "S4 weka-env": (11525, 13371, 10352, 12451),
    "S5 weka-mem": (9634, 10093, 7066, 10093),
    "S6 bfcl-gpu": (125, 126, 126, 126),
}

MAKESPANS = {
    "X1 fixed-mini": {
        "coupled": (2388.4, 2441.9, 2225.8, 3278.1),
        "fifo": (1457.0, 1264.7, 858.2, 1700.2),
        "caas": (1508.8, 1128.6, 956.1, 1878.5),
        "clairvoyant": (1032.9, 888.5, 699.8, 1253.5),
    },
    "X2 fixed-weka": {
        "coupled": (15070.4, 19106.0, 12317.7, 14051.8),
        "fifo": (15928.8, 15117.9, 10852.9, 14872.7),
        "caas": (17431.7, 14186.0, 10360.9, 15912.8),
        "clairvoyant": (13007.6, 11640.2, 8109.8, 12999.2),
    },
    "S1 mini-env": {
        "coupled": (3586.7, 3591.3, 3092.6, 4750.1),
        "fifo": (2091.1, 1955.1, 1418.5, 2477.3),
        "caas": (2153.2, 1821.3, 1496.6, 2721.2),
        "clairvoyant": (1755.2, 1730.3, 1351.3, 2060.9),
    },
    "S2 mini-bal": {
        "coupled": (2074.6, 2100.8, 1793.7, 2845.3),
        "fifo": (1281.9, 1087.3, 882.1, 1433.5),
        "caas": (1194.0, 1127.9, 898.5, 1530.7),
        "clairvoyant": (1085.5, 944.7, 702.0, 1410.1),
    },
    "S3 mini-mem": {
        "coupled": (2074.6, 2100.8, 1793.7, 2845.3),
        "fifo": (1569.0, 1311.2, 1036.0, 1914.2),
        "caas": (1514.0, 1311.5, 1061.1, 1918.1),
        "clairvoyant": (1284.7, 1190.9, 956.2, 1734.6),
    },
    "S4 weka-env": {
        "coupled": (13563.4, 16082.3, 14396.7, 15943.1),
        "fifo": (16060.4, 18495.9, 13383.6, 16313.7),
        "caas": (15114.0, 15706.8, 13629.0, 14601.7),
        "clairvoyant": (11615.1, 13455.3, 10428.0, 12555.9),
    },
    "S5 weka-mem": {
        "coupled": (10193.4, 12693.3, 9492.6, 10417.2),
        "fifo": (11043.3, 12517.6, 8257.1, 11231.6),
        "caas": (10599.6, 12362.2, 8547.1, 10725.6),
        "clairvoyant": (10480.6, 10711.4, 7462.4, 10685.2),
    },
    "S6 bfcl-gpu": {
        "coupled": (348.8, 352.1, 352.2, 353.2),
        "fifo": (218.9, 220.2, 220.6, 219.0),
        "caas": (221.1, 223.1, 222.9, 224.0),
        "clairvoyant": (210.6, 211.7, 214.6, 211.5),
    },
}

UNLIMITED_MEANS = {  # decoupled FIFO with every sample alive
    "X1 fixed-mini": 1320,
    "X2 fixed-weka": 14193,
    "S1 mini-env": 1986,
    "S2 mini-bal": 2285,
    "S3 mini-mem": 3287,
    "S4 weka-env": 16389,
    "S5 weka-mem": 25116,
    "S6 bfcl-gpu": 219,
}

ESTIMATE_MEANS = {  # orders by expected work, in the order of `BOUNDS`
    "gp": (1152, 12594, 1844, 1159, 1441, 13595, 10743, 218),
    "pgp": (1079, 11499, 1832, 1097, 1449, 13120, 9843, 217),
    "pgp-2/3": (1107, 12240, 1842, 1104, 1412, 13288, 9881, 217),
    "prior+fifo 3C": (1132, 13897, 1862, 1159, 1383, 15283, 10617, 275),
}


def mean_makespan(scenario, policy):
    """The mean over the four seeds, where the study gives one."""
    if policy == "M=N fifo":
        return UNLIMITED_MEANS[scenario]
    if policy in ESTIMATE_MEANS:
        return ESTIMATE_MEANS[policy][list(BOUNDS).index(scenario)]
    seconds = MAKESPANS[scenario].get(policy)
    return None if seconds is None else sum(seconds) / len(seconds)


def tolerated_points(scenario):
    """How far a change against FIFO may be off, in percentage points."""
    return {"S3 mini-mem": 8, "S5 weka-mem": 6}.get(scenario, 4)
