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
        "pgp": (1023.6, 1014.9, 917.2, 1360.3),
        "clairvoyant": (1032.9, 888.5, 699.8, 1253.5),
    },
    "X2 fixed-weka": {
        "coupled": (15070.4, 19106.0, 12317.7, 14051.8),
        "fifo": (15928.8, 15117.9, 10852.9, 14872.7),
        "caas": (17431.7, 14186.0, 10360.9, 15912.8),
        "pgp": (13012.2, 11709.8, 8107.5, 13166.5),
        "clairvoyant": (13007.6, 11640.2, 8109.8, 12999.2),
    },
    "S1 mini-env": {
        "coupled": (3586.7, 3591.3, 3092.6, 4750.1),
        "fifo": (2091.1, 1955.1, 1418.5, 2477.3),
        "caas": (2153.2, 1821.3, 1496.6, 2721.2),
        "pgp": (1869.6, 1770.2, 1438.3, 2251.8),
        "clairvoyant": (1755.2, 1730.3, 1351.3, 2060.9),
    },
    "S2 mini-bal": {
        "coupled": (2074.6, 2100.8, 1793.7, 2845.3),
        "fifo": (1281.9, 1087.3, 882.1, 1433.5),
        "caas": (1194.0, 1127.9, 898.5, 1530.7),
        "pgp": (1093.4, 984.5, 904.3, 1406.6),
        "clairvoyant": (1085.5, 944.7, 702.0, 1410.1),
    },
    "S3 mini-mem": {
        "coupled": (2074.6, 2100.8, 1793.7, 2845.3),
        "fifo": (1569.0, 1311.2, 1036.0, 1914.2),
        "caas": (1514.0, 1311.5, 1061.1, 1918.1),
        "pgp": (1421.6, 1268.1, 1120.9, 1985.6),
        "clairvoyant": (1284.7, 1190.9, 956.2, 1734.6),
    },
    "S4 weka-env": {
        "coupled": (13563.4, 16082.3, 14396.7, 15943.1),
        "fifo": (16060.4, 18495.9, 13383.6, 16313.7),
        "caas": (15114.0, 15706.8, 13629.0, 14601.7),
        "pgp": (13277.5, 14061.8, 10992.6, 14148.4),
        "clairvoyant": (11615.1, 13455.3, 10428.0, 12555.9),
    },
    "S5 weka-mem": {
        "coupled": (10193.4, 12693.3, 9492.6, 10417.2),
        "fifo": (11043.3, 12517.6, 8257.1, 11231.6),
        "caas": (10599.6, 12362.2, 8547.1, 10725.6),
        "pgp": (10496.9, 10717.4, 7535.7, 10622.0),
        "clairvoyant": (10480.6, 10711.4, 7462.4, 10685.2),
    },
    "S6 bfcl-gpu": {
        "coupled": (348.8, 352.1, 352.2, 353.2),
        "fifo": (218.9, 220.2, 220.6, 219.0),
        "caas": (221.1, 223.1, 222.9, 224.0),
        "pgp": (213.6, 216.4, 219.4, 220.2),
        "clairvoyant": (210.6, 211.7, 214.6, 211.5),
    },
}

MEANS = {  # of the columns for which the study gives no single runs
    "X1 fixed-mini": {
        "M=N fifo": 1320,
        "prior+fifo 3C": 1132,
        "prior+caas 3C": 1124,
        "gp": 1152,
        "pgp-2/3": 1107,
    },
    "X2 fixed-weka": {
        "M=N fifo": 14193,
        "prior+fifo 3C": 13897,
        "prior+caas 3C": 12389,
        "gp": 12594,
        "pgp-2/3": 12240,
    },
    "S1 mini-env": {
        "M=N fifo": 1986,
        "prior+fifo 3C": 1862,
        "prior+caas 3C": 1867,
        "gp": 1844,
        "pgp-2/3": 1842,
    },
    "S2 mini-bal": {
        "M=N fifo": 2285,
        "prior+fifo 3C": 1159,
        "prior+caas 3C": 1159,
        "gp": 1159,
        "pgp-2/3": 1104,
    },
    "S3 mini-mem": {
        "M=N fifo": 3287,
        "prior+fifo 3C": 1383,
        "prior+caas 3C": 1409,
        "gp": 1441,
        "pgp-2/3": 1412,
    },
    "S4 weka-env": {
        "M=N fifo": 16389,
        "prior+fifo 3C": 15283,
        "prior+caas 3C": 13365,
        "gp": 13595,
        "pgp-2/3": 13288,
    },
    "S5 weka-mem": {
        "M=N fifo": 25116,
        "prior+fifo 3C": 10617,
        "prior+caas 3C": 10030,
        "gp": 10743,
        "pgp-2/3": 9881,
    },
    "S6 bfcl-gpu": {
        "M=N fifo": 219,
        "prior+fifo 3C": 275,
        "prior+caas 3C": 275,
        "gp": 218,
        "pgp-2/3": 217,
    },
}


def mean_makespan(scenario, policy):
    """The mean over the four seeds."""
    seconds = MAKESPANS[scenario].get(policy)
    return MEANS[scenario][policy] if seconds is None else sum(seconds) / len(seconds)


def tolerated_points(scenario):
    """How far a change against FIFO may be off, in percentage points."""
    return {"S3 mini-mem": 8, "S5 weka-mem": 6}.get(scenario, 4)
