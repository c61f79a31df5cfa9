/* shmq: the shared-memory log. Public header of libshmq, and every struct that processes share.
 *
 * A broker is a RocketMQ CommitLog that processes map: producers append to the file in memory, consumers read it there,
 * and no daemon is asked. Its tables lie in three shared segments:
 *
 *   control   head · log state · claim · topic table · queue table · frame table   writers map it RW, readers RO
 *   units     frames of 4096 bytes, 204 ConsumeQueue units of 20 bytes each        writers map it RW, readers RO
 *   readers   damage reports · client slots · waiter bitmaps · group offsets       all map it RW
 *
 * and the records in the CommitLog files `<store>/commitlog/%020d`, which writers map RW and readers RO.
 *
 * Rules that hold at every instruction, whichever process is killed:
 *   (1) bytes below log_end are complete records and never change;
 *   (2) log_end is moved by one release store, the commit point; nothing is ever rolled back;
 *   (3) a unit below queue.offset_max is complete, and its record ends at or below log_end;
 *   (4) whatever a dead lock holder left unfinished is finished by the next one from `intent` (redo only);
 *   (5) memory a live process may still write into is never given to another process.
 *
 * Every value read from shared memory is input: copied once, then range-checked. A process that may write to the
 * segments may damage them all the same; who may is a matter of file permissions.
 *
 * A program in C opens a broker with shmq_store_open and is linked with libshmq.so (docs/reference/c.md). A struct
 * shmq_store belongs to one thread at a time. Deadlines are times on CLOCK_MONOTONIC in nanoseconds; 0 never blocks.
 */
#ifndef SHMQ_H
#define SHMQ_H

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define SHMQ_MAGIC UINT64_C(0x53484d5155455545) /* "SHMQUEUE" */
#define SHMQ_ABI 15u /* of the layouts in shared memory, and the number behind libshmq.so */
#define SHMQ_VERSION_MAJOR 0
#define SHMQ_VERSION_MINOR 1
#define SHMQ_VERSION_PATCH 0

/* What libshmq.so exports. The Python extension is compiled from the same files and exports none of it. */
#ifdef SHMQ_LIBRARY
#define SHMQ_API __attribute__((visibility("default")))
#else
#define SHMQ_API
#endif

/* ---- limits; each is a width or a bound used by more than one file ---------------------------- */
#define SHMQ_TOPIC_BYTES_MAX 127
#define SHMQ_GROUP_BYTES_MAX 255
#define SHMQ_GROUP_SETTINGS_BYTES_MAX 444u
#define SHMQ_BODY_BYTES_MAX (4u << 20)
#define SHMQ_PROPERTIES_BYTES_MAX 32767u
#define SHMQ_TOPIC_EXTENTS 4
#define SHMQ_UNIT_BYTES 20u
#define SHMQ_FRAME_BYTES 4096u
#define SHMQ_CACHE_LINE_BYTES 64u
#define SHMQ_FRAME_UNITS 204u            /* 204 * 20 = 4080; the last 16 bytes stay unused */
#define SHMQ_BATCH_MAX 512u              /* records of a batch that needs no memory of its own, */
#define SHMQ_BATCH_BYTES_MAX (256u << 10) /* and their bytes */
#define SHMQ_INLINE_BYTES_MAX (16u << 10) /* longer records are copied outside the lock, under a claim */
#define SHMQ_TOGETHER_MAX 4u              /* records of different queues that one commit may hold */
#define SHMQ_LEADER_BYTES_MAX 263u        /* a host name of 253 characters, brackets, a port */
#define SHMQ_NONE UINT32_MAX
#define SHMQ_CLIENTS_MAX 65536u
#define SHMQ_DEATHS_MAX 8u                /* lock holders dead in a row before the section itself is suspected */
#define SHMQ_SLEEP_NS UINT64_C(200000000) /* a sleeper that was not woken looks for itself after this */
#define SHMQ_CLAIM_PATIENCE_NS UINT64_C(20000000) /* a claim of a living process may delay others this long */

/* ---- outcomes: 0 is success, every other value has one meaning -------------------------------- */
enum shmq_status {
    SHMQ_OK = 0,
    SHMQ_WOULD_BLOCK = 1,      /* the lock is taken; call the blocking form without the GIL */
    SHMQ_BROKER_BUSY = 2,      /* the deadline passed while another process held the lock or a claim */
    SHMQ_LOG_FULL = 3,         /* no preallocated file is left; the keeper is dead or the disk is full */
    SHMQ_UNITS_FULL = 4,       /* no frame is left and the units segment cannot grow */
    SHMQ_READ_ONLY = 5,        /* store->control->log.read_only says why */
    SHMQ_TOO_LARGE = 6,
    SHMQ_NO_TOPIC = 7,
    SHMQ_NO_QUEUE = 8,
    SHMQ_TABLE_FULL = 9,
    SHMQ_TIMED_OUT = 10,
    SHMQ_EMPTY = 11,
    SHMQ_CORRUPT = 12,         /* stored bytes contradict themselves */
    SHMQ_GONE = 13,            /* retention has deleted what was asked for */
    SHMQ_BAD_ARGUMENT = 14,
    SHMQ_SYSTEM = 15,          /* errno has the reason */
    SHMQ_FOREIGN_ABI = 16,
    SHMQ_FOREIGN_NAMESPACE = 17,
    SHMQ_RETIRED = 18,         /* this generation of segments was given up; attach again */
    SHMQ_EVICTED = 19,         /* the claim was taken away; the record must be copied */
    SHMQ_FENCED = 20,          /* another process decides about the record this was done for */
    SHMQ_NOT_MASTER = 21,      /* this log follows a master, or is fenced: store->log->leader */
    SHMQ_UNCONFIRMED = 22,     /* the deadline passed: on this disk, but not on those of all replicas in sync */
    SHMQ_DETACHED = 23,        /* our client slot was taken back; attach again */
    SHMQ_DOUBTED = 24,         /* it is stored here, and the master of now may lack it: this log is fenced since */
};

/* In the word that says so: DISK_FULL | percent used << 8 | percent allowed << 16, so that errors can name them. */
#define SHMQ_READ_ONLY_REASON(word) ((word) & 0xffu)
#define SHMQ_READ_ONLY_USED(word) ((word) >> 8 & 0xffu)
#define SHMQ_READ_ONLY_LIMIT(word) ((word) >> 16 & 0xffu)

enum shmq_read_only_reason {
    SHMQ_WRITABLE = 0,
    SHMQ_READ_ONLY_FLUSH_FAILED = 1, /* or the file system was mounted read-only, as nothing could be flushed then */
    SHMQ_READ_ONLY_POISONED = 2,  /* SHMQ_DEATHS_MAX lock holders died in a row without one commit */
    SHMQ_READ_ONLY_STOPPED_HOLDER = 3,
    SHMQ_READ_ONLY_DISK_FULL = 4,
    SHMQ_READ_ONLY_OPERATOR = 5,
    SHMQ_READ_ONLY_FOLLOWER = 6,  /* it takes the records of a master on another host: replicate.c */
    SHMQ_READ_ONLY_FEW_REPLICAS = 7, /* fewer are in sync than the operator asks for: confirm.c */
    SHMQ_READ_ONLY_FENCED = 8,    /* another broker may be the master now: standing.c */
    SHMQ_READ_ONLY_FILES_LOST = 9, /* a file that is mapped is not the one at its path any more */
};

/* What a message has to be before it is acknowledged or visible. One function says it of a queue: shmq_queue_rule. */
enum shmq_ack_rule {
    SHMQ_ACK_END = 0,          /* in the log: below `end` */
    SHMQ_ACK_DURABLE = 1,      /* on the disk: below `durable_end` */
    SHMQ_ACK_CONFIRMED = 2,    /* on the disks of this host and of its replicas: below `confirmed_end` */
};

/* ---- control segment --------------------------------------------------------------------------- */
struct shmq_sizes {            /* chosen at creation, immutable */
    uint64_t file_bytes;       /* one CommitLog file */
    uint32_t topic_max;
    uint32_t queue_max;
    uint32_t frame_max;
    uint32_t client_max;
    uint32_t group_max;
    uint32_t offset_max;       /* (group, queue) pairs */
};

struct shmq_identity {         /* which directory: a copy that takes its name is another; inode 0: whatever has the name */
    _Atomic uint64_t device;
    _Atomic uint64_t inode;
};

struct shmq_head {             /* immutable once magic is set, but for store_host, clock and log_directory */
    _Atomic uint64_t magic;    /* stored last by the creator */
    uint32_t abi;
    uint32_t mutex_bytes;
    uint64_t generation;       /* random, also part of the segment names */
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid of the creator */
    uint64_t control_bytes;
    uint64_t units_bytes;
    uint64_t readers_bytes;
    struct shmq_sizes sizes;
    uint32_t ack_rule;         /* enum shmq_ack_rule: what is acknowledged and visible, but of topics with another flush */
    uint32_t trusts_reads;     /* 1: by default readers leave the CRCs of records out */
    uint8_t store_host[8];     /* IPv4 and port, as RocketMQ stores them; set before any client attaches */
    char libc[32];             /* robust mutex layouts differ between libc families */
    char boot_id[40];
    char broker_name[128];
    char store_path[1024];
    _Atomic uint64_t clock;    /* of 0 the host's, else tests set it: clock.c */
    struct shmq_identity log_directory; /* of commitlog/: mapping.c */
};
static_assert(sizeof(struct shmq_head) <= 4096, "the head is one page");

enum shmq_intent_kind {
    SHMQ_INTENT_NONE = 0, SHMQ_INTENT_APPEND = 1, SHMQ_INTENT_FRAME_TAKE = 2, SHMQ_INTENT_FRAME_FREE = 3,
    SHMQ_INTENT_TOGETHER = 4,
};

struct shmq_intent_queue { uint64_t queue_offset; uint32_t queue; uint32_t reserved; };

struct shmq_intent {           /* written under the lock only; kind is invalidated first and set last */
    _Atomic uint32_t kind;
    uint32_t queue;
    uint64_t log_position;
    uint64_t record_bytes;     /* of the whole batch */
    uint64_t queue_offset;
    uint32_t count;
    uint32_t frame;
    uint32_t bucket;
    uint32_t frame_next;       /* FRAME_TAKE: what followed `frame` on the free list (index + 1, 0 is the end) */
    uint32_t from_free_list;
    uint32_t ordinal;
    struct shmq_intent_queue each[SHMQ_TOGETHER_MAX]; /* TOGETHER: one record for each of `count` queues */
};

enum shmq_claim_state { SHMQ_CLAIM_FREE = 0, SHMQ_CLAIM_OPEN = 1 };

struct shmq_claim {            /* at most one claim is open; claim.c says why one is enough */
    _Atomic uint32_t state;    /* futex word: waiters sleep while it is OPEN */
    uint32_t owner_pid;
    uint64_t owner_start;      /* field 22 of /proc/pid/stat, so a reused pid is not mistaken */
    uint64_t serial;           /* grows with each claim; the owner proves with it that the claim is still its own */
    uint64_t log_position;
    uint64_t bytes;
    uint64_t opened_ns;        /* CLOCK_MONOTONIC */
};

struct shmq_log {
    alignas(128) pthread_mutex_t lock;       /* robust, process-shared */
    uint64_t lock_count;                     /* acquisitions; tells a stuck holder from a busy lock */
    uint32_t holder_pid;                     /* diagnostic; the proof is the TID in the mutex word */
    alignas(128) struct shmq_intent intent;
    alignas(128) _Atomic uint64_t end;       /* commit point of every append */
    uint64_t store_ms_last;                  /* store timestamps never decrease along the log */
    _Atomic uint64_t described_end;          /* no record from here to `end` has properties, and so none has keys */
    _Atomic uint64_t fence;                  /* see together.c; written under the lock, never falls */
    alignas(128) _Atomic uint64_t durable_end;
    _Atomic uint32_t durable_sequence;       /* futex word, grows when durable_end does or read_only is set */
    _Atomic uint32_t flush_round;            /* number of the flush under way, or of the last one; flush.c */
    _Atomic uint64_t flush_target;           /* how far that one reaches */
    _Atomic uint64_t confirmed_end;          /* of SHMQ_ACK_CONFIRMED: at most durable_end, never falls; confirm.c */
    _Atomic uint64_t in_sync_end;            /* on the disk of every replica in sync; UINT64_MAX: none is needed */
    _Atomic uint32_t confirmed_sequence;     /* futex word, grows when confirmed_end does or read_only is set */
    _Atomic uint32_t in_sync_count;          /* replicas in sync */
    _Atomic uint32_t lacks_replicas;         /* 1: where nothing else forbids records, FEW_REPLICAS does */
    alignas(128) _Atomic uint64_t allocated_end; /* all files below it exist at full size with blocks reserved */
    _Atomic uint64_t begin;                  /* first byte retention has left */
    union {                                  /* an append looks at all of them at once: state.c */
        struct {
            _Atomic uint32_t read_only;      /* enum shmq_read_only_reason; of a full disk also how full, see below */
            _Atomic uint16_t retired;
            _Atomic uint16_t leased;         /* 1: `lease_until_ns` holds */
        };
        _Atomic uint64_t doubts;             /* 0: an append has nothing to ask */
    };
    _Atomic uint64_t lease_until_ns;         /* CLOCK_BOOTTIME until which records are taken; 0: without end. standing.c */
    alignas(128) _Atomic uint64_t flush_wanted; /* the farthest log position that a waiter wants on the disk */
    _Atomic uint64_t keeper_beat_ns;         /* CLOCK_MONOTONIC of the keeper's last round */
    _Atomic uint32_t keeper_bell;            /* futex word of the keeper's flush thread: state.c */
    _Atomic uint32_t keeper_asleep;
    _Atomic uint32_t keeper_errands;         /* rings for anything but a flush: space runs low, a reader found damage */
    _Atomic uint32_t shipper_bell;           /* futex word of the process that ships the log to replicas: state.c */
    _Atomic uint32_t shipper_asleep;
    alignas(128) struct shmq_claim claim;
    alignas(128) pthread_mutex_t flush_lock; /* robust; its holder may fdatasync and raise durable_end */
    alignas(128) pthread_mutex_t table_lock; /* robust; topics, groups, offsets, client slots */
    alignas(128) uint32_t deaths_in_a_row;   /* lock holders that died since the last commit */
    uint64_t deaths;                         /* statistics below: written under the lock */
    uint64_t appended;
    uint64_t appended_bytes;
    uint64_t rolled;
    uint64_t claims;
    uint64_t claims_evicted;
    _Atomic uint64_t busy;                   /* callers that gave up at their deadline */
    alignas(128) _Atomic uint32_t frame_ready;   /* frames below it have memory reserved */
    uint32_t frame_bump;                     /* frames below it were used at least once */
    uint32_t frame_free;                     /* head of the free list: index + 1, 0 when empty */
    uint32_t reserved_frames;                /* keeps the place of what follows */
    _Atomic uint32_t frame_version;          /* grows when a frame leaves the directory; lock-free look-ups re-check it */
    alignas(128) _Atomic uint32_t topic_count;   /* entries below it may be read */
    _Atomic uint32_t queue_count; /* entries below it were used at least once */
    _Atomic uint32_t queue_used;  /* entries that are not free */
    _Atomic uint32_t table_version;          /* grows with each topic or group change */
    _Atomic uint32_t has_sync_topics;        /* some topic is flushed synchronously, or was once */
    alignas(128) _Atomic uint32_t standing;  /* where nothing else forbids records, this reason does: WRITABLE of a master,
                                                else FOLLOWER or FENCED; standing.c */
    char leader[SHMQ_LEADER_BYTES_MAX + 1];  /* host:port of the master instead of this one; set before `standing` */
    _Atomic uint64_t epoch;                  /* of the master whose records come now; never falls */
};

enum shmq_topic_state { SHMQ_TOPIC_EMPTY = 0, SHMQ_TOPIC_LIVE = 1, SHMQ_TOPIC_DELETED = 2 };

struct shmq_extent { uint32_t first_queue; uint32_t count; };

/* When a message counts: once it is in the log, or once it is on disk. */
enum shmq_flush { SHMQ_FLUSH_AS_BROKER = 0, SHMQ_FLUSH_ASYNC = 1, SHMQ_FLUSH_SYNC = 2 };

/* A topic is known by a number as a queue is: low bits say its entry, high bits how many names the entry had before. */
struct shmq_topic {
    _Atomic uint32_t state;
    _Atomic uint32_t version;  /* grows with each change of the fields below */
    uint32_t read_queues;
    uint32_t write_queues;
    uint32_t perm;             /* RocketMQ: 4 read, 2 write, 1 inherit */
    uint32_t flags;            /* RocketMQ's topicSysFlag */
    uint16_t kind;             /* 0 normal, 1 fifo, 2 delay, 3 transaction */
    uint16_t flush;            /* enum shmq_flush, as in each of its queues */
    uint32_t name_bytes;
    _Atomic uint32_t number;   /* of the topic whose name it has, or had last */
    uint32_t reserved;
    uint64_t born_position;    /* log_end when created; older records of that name belong to a deleted topic */
    struct shmq_extent extents[SHMQ_TOPIC_EXTENTS];
    char name[128];
};
static_assert(sizeof(struct shmq_topic) == 208, "topic entry");

/* A queue is known by its number, which no other queue of these segments ever gets: low bits say its entry, high bits how
 * many queues the entry had before. queue.c has the life of an entry. */
struct shmq_queue {
    _Atomic uint64_t offset_max;   /* next queue offset; the word consumers bound themselves by */
    _Atomic uint64_t offset_min;   /* first queue offset whose record still exists */
    _Atomic uint64_t persisted;    /* units below it are in the ConsumeQueue files */
    _Atomic uint32_t frame_last;   /* hint: frame of the last unit; checked against its tag */
    uint32_t topic;
    uint32_t queue_id;
    _Atomic uint32_t flush;        /* enum shmq_flush of its topic */
    uint64_t bytes;                /* statistics */
    _Atomic uint32_t life;         /* number + 1 of the queue that lives here, 0 none */
    _Atomic uint32_t leaving;      /* number + 1 of a deleted queue whose frames are not all given back, 0 none */
    uint32_t last;                 /* number + 1 of the newest queue that lived here, 0 none ever did */
    uint32_t reserved;
};
static_assert(sizeof(struct shmq_queue) == 64, "one cache line a queue");

struct shmq_frame {            /* directory entry of one frame of the units segment */
    _Atomic uint64_t tag;      /* (queue + 1) << 32 | ordinal, or 0 when free */
    _Atomic uint32_t next;     /* hash chain or free list: index + 1, 0 is the end */
    uint32_t reserved;
};
static_assert(sizeof(struct shmq_frame) == 16, "frame entry");

/* ---- readers segment ------------------------------------------------------------------------------ */
enum shmq_client_state { SHMQ_CLIENT_FREE = 0, SHMQ_CLIENT_AWAKE = 1, SHMQ_CLIENT_ASLEEP = 2 };

struct shmq_client {           /* one attached process connection */
    _Atomic uint32_t state;
    _Atomic uint32_t generation;   /* grows each time the slot is handed out or taken back; changed with `state`: sleep.c */
    uint32_t pid;
    uint32_t role;                 /* 1 reads, 2 writes, 3 both */
    uint64_t start;                /* field 22 of /proc/pid/stat */
    _Atomic uint64_t watched;      /* while ASLEEP: bit (queue mod 64) of each queue it sleeps on */
    _Atomic uint64_t errand;       /* slots it wakes once it is woken: queue << 32 | first slot << 16 | last slot, 0 none */
    _Atomic uint64_t errand_hands; /* of these slots, those whose bit (slot mod 64) stands here */
    uint64_t padding_waiting[2];
    /* Counted at each message: on a line of its own, away from those who look for sleepers. */
    _Atomic uint64_t received;     /* statistics, written by the client itself */
    _Atomic uint64_t sent;
    _Atomic uint64_t beat_ns;      /* last poll or send, CLOCK_MONOTONIC */
    _Atomic uint64_t settled;      /* of received: acknowledged or given back; the rest is in its hands */
    uint64_t padding_counting[4];
};
static_assert(sizeof(struct shmq_client) == 128, "two cache lines a client");
static_assert(offsetof(struct shmq_client, received) == 64, "the second line begins with the statistics");
static_assert(offsetof(struct shmq_client, state) % 8 == 0 && offsetof(struct shmq_client, generation) % 8 == 4,
              "both are changed at once");

struct shmq_group_settings { uint32_t bytes; char text[SHMQ_GROUP_SETTINGS_BYTES_MAX]; };

struct shmq_group {
    uint32_t name_bytes;
    _Atomic uint32_t state;
    char name[256];
    _Atomic uint32_t settings_turn;  /* settings[settings_turn & 1] is what holds; the other is being written */
    _Atomic uint32_t number;         /* of the name that has the entry: member.c */
    struct shmq_group_settings settings[2];
};
static_assert(sizeof(struct shmq_group) == 1168, "group entry");

struct shmq_offset {           /* progress of one group on one queue */
    alignas(16) _Atomic uint64_t committed; /* next queue offset to deliver, plus 1; 0 means never set */
    _Atomic uint64_t place;        /* shmq_offset_place of its group and queue; `committed` changes together with it: offset.c */
    _Atomic uint64_t owner;        /* client slot + 1 | slot generation << 32 of the member that reads it, 0 none;
                                      or a lock over TCP: see owner.c */
    _Atomic uint64_t updated_ms;   /* of the broker's clock, at most SHMQ_STAMP_AGE_MS old */
    _Atomic uint64_t taken;        /* statistics: queue offset behind what the reading member was handed, 0 none */
    _Atomic uint64_t lost;         /* statistics: messages that cleaning took before they were acknowledged << 32 |
                                      wall clock seconds of the last time; written by the keeper only */
};
static_assert(sizeof(struct shmq_offset) == 48, "offset entry");

/* What readers found that cannot be handed out, for the keeper: it rebuilds units from the log, and keeps a copy of
 * damaged records. Any process may report, lock-free; only the keeper takes; damage.c has the protocol. */
#define SHMQ_DAMAGE_MAX 128u
enum shmq_damage_kind { SHMQ_DAMAGE_UNIT = 1, SHMQ_DAMAGE_RECORD = 2 };
struct shmq_damage {           /* one report; input, as everything a client may write to */
    _Atomic uint64_t turn;     /* ticket of the report that lies here whole */
    _Atomic uint64_t place;    /* enum shmq_damage_kind << 32 | queue index, SHMQ_NONE when it is not known */
    _Atomic uint64_t queue_offset;
    _Atomic uint64_t log_position; /* as the unit says; UINT64_MAX: there is no unit */
    _Atomic uint64_t record_bytes;
    uint64_t padding;
};
struct shmq_damages {
    _Atomic uint64_t reported; /* tickets given out: report n lies at (n - 1) mod SHMQ_DAMAGE_MAX */
    _Atomic uint64_t judged;   /* tickets up to here the keeper has dealt with */
    _Atomic uint64_t refused;  /* statistics: reports that found no room */
    uint64_t padding[5];
    struct shmq_damage each[SHMQ_DAMAGE_MAX];
};
static_assert(sizeof(struct shmq_damages) == 64 + 48 * SHMQ_DAMAGE_MAX, "damage reports");

struct shmq_readers_head {
    _Atomic uint64_t magic;
    uint64_t generation;
    _Atomic uint32_t client_high;  /* slots below it were used at least once */
    _Atomic uint32_t group_count;
    _Atomic uint32_t offset_count;
    uint32_t reserved;
    _Atomic uint64_t wakes;        /* statistics: semaphore posts */
    uint64_t padding[3];
};
static_assert(sizeof(struct shmq_readers_head) == 64, "readers head");

/* ---- I/O vtable: all file work and every clock of the core ------------------------------------------ */
enum shmq_populate {           /* how pages of a mapped file are made present */
    SHMQ_POPULATE_READ = 0,
    SHMQ_POPULATE_WRITE = 1,
    /* Each page by itself. Ahead of a sequence of faults the kernel makes pages in pieces of up to 2 MiB, and a store into
     * a piece makes all of it dirty: a flush of one record would write a megabyte. */
    SHMQ_POPULATE_WRITE_SMALL = 2,
};
struct shmq_io {
    int (*open)(int directory, const char *path, int flags); /* as openat; no link has the name of a file */
    int (*close)(int fd);
    void *(*map)(int fd, uint64_t offset, size_t bytes, bool writable);
    int (*unmap)(void *address, size_t bytes);
    int (*populate)(void *address, size_t bytes, enum shmq_populate how);
    int (*forget)(void *address, size_t bytes); /* drop our page-table entries; what was stored stays in the file */
    int (*allocate)(int fd, uint64_t offset, uint64_t bytes); /* posix_fallocate semantics: returns errno */
    int (*sync_data)(int fd);
    ssize_t (*read_at)(int fd, void *out, size_t bytes, uint64_t offset);
    int (*file_bytes)(int fd, uint64_t *bytes);
    int (*identity)(int fd, uint64_t *device, uint64_t *inode);
    uint64_t (*wall_ms)(void);
    uint64_t (*monotonic_ns)(void);
    uint64_t (*boottime_ns)(void);
};
SHMQ_API extern const struct shmq_io shmq_io_posix;

/* ---- CRC-32 (the IEEE polynomial RocketMQ uses), crc.c ---------------------------------------------- */
/* `raw` forms keep the register: no initial or final inversion, so they are linear over XOR. */
SHMQ_API uint32_t shmq_crc32(const void *data, size_t bytes);                      /* as zlib.crc32(data) */
SHMQ_API uint32_t shmq_crc32_raw(uint32_t state, const void *data, size_t bytes);
/* One pass: memcpy and CRC. */
SHMQ_API uint32_t shmq_crc32_copy_raw(uint32_t state, void *to, const void *from, size_t bytes);
SHMQ_API uint32_t shmq_crc32_shift(uint64_t zero_bytes);                           /* multiplier x^(8n) mod P */
/* State followed by those n zero bytes. */
SHMQ_API uint32_t shmq_crc32_multiply(uint32_t state, uint32_t multiplier);
/* Java String.hashCode over UTF-16. */
SHMQ_API int32_t shmq_tag_hash(const char *utf8, size_t bytes);

/* ---- record: RocketMQ's stored message, record.c ------------------------------------------------------ */
#define SHMQ_RECORD_MAGIC_V1 0xDAA320A7u
#define SHMQ_RECORD_MAGIC_V2 0xDAA320ABu
#define SHMQ_RECORD_MAGIC_BLANK 0xCBD43194u
#define SHMQ_RECORD_BLANK_BYTES 8u
#define SHMQ_RECORD_BODY_AT 88u            /* with two IPv4 hosts */
#define SHMQ_NAME_END '\x01'              /* of a property's name, and of its value */
#define SHMQ_VALUE_END '\x02'
#define SHMQ_CRC_NAME "__CRC32#"
#define SHMQ_CRC_KEY SHMQ_CRC_NAME "\x01"
#define SHMQ_RECORD_CRC_BYTES 20u          /* "__CRC32#" 0x01 ten digits 0x02 */
#define SHMQ_RECORD_BYTES_MAX (SHMQ_BODY_BYTES_MAX + (64u << 10))
#define SHMQ_SYS_FLAG_TRANSACTION 12u      /* mask; 4 prepared and 12 rollback are stored but belong to no queue */
#define SHMQ_SYS_FLAG_ROLLBACK 12u
#define SHMQ_HOST_BYTES 8u                 /* IPv4 address and port */
#define SHMQ_HOST_BYTES_V6 20u
#define SHMQ_HOST_LONGER (SHMQ_HOST_BYTES_V6 - SHMQ_HOST_BYTES)
/* A unit says a hash of 32 bits, or in the schedule queues a due time. A caller that knows the delay but not the store
 * time passes SHMQ_UNIT_DELAY_BASE + delay; the append writes store time + delay. */
#define SHMQ_UNIT_DELAY_BASE INT64_MIN
#define SHMQ_UNIT_DELAY_MS_MAX (INT64_C(1) << 40)
#define SHMQ_STAMP_AGE_MS 1 /* an append is stamped with the clock of when it begins, or at most this much before; clock.c */
#define SHMQ_HOLE_TOPIC "RMQ_SYS_SHMQ_HOLE" /* filler left by an evicted claim, sysFlag rollback: no reader dispatches it */

struct shmq_spec {             /* what to store; pointers are borrowed for the call */
    const void *body;          /* NULL: body_bytes are left to the caller, at shmq_record_body_at() */
    uint32_t body_bytes;
    uint32_t body_crc_raw;     /* with body == NULL: shmq_crc32_raw(0xFFFFFFFF, body) already computed */
    const char *topic;
    uint32_t topic_bytes;
    const char *properties;    /* RocketMQ text without the CRC property; may lack the final 0x02 */
    uint32_t properties_bytes;
    uint32_t queue_id;
    uint32_t flag;
    uint32_t sys_flag;
    uint32_t reconsume_times;
    uint64_t born_ms;          /* 0: the time of storing */
    uint64_t prepared_position;
    uint8_t born_host[SHMQ_HOST_BYTES_V6]; /* address and port; the sysFlag's bit follows born_host_bytes */
    uint8_t born_host_bytes;   /* SHMQ_HOST_BYTES_V6, anything else: IPv4 */
    uint8_t store_host[8];
    bool body_changes;         /* `body` may be written to meanwhile: shmq_claim_fill takes the CRC of the copy */
};

struct shmq_patch {            /* what must be kept to fill the last fields in under the lock */
    uint32_t record_bytes;
    uint32_t crc_raw;          /* over [0, record_bytes - 20) with queueOffset, physicalOffset, storeTimestamp zero */
    uint32_t behind_bytes;     /* from 64 (+ longer) to record_bytes - 20, if a table has their multiplier, else 0 */
    uint32_t shift;            /* that multiplier where the table ends too early, else one */
    uint32_t longer;           /* what the born host takes more than an IPv4 one: 0 or 12 */
    bool described;            /* the record has properties */
};

static inline uint32_t shmq_record_body_at(const struct shmq_spec *spec)
{
    return SHMQ_RECORD_BODY_AT + (spec->born_host_bytes == SHMQ_HOST_BYTES_V6 ? SHMQ_HOST_LONGER : 0);
}
/* Prepared and rolled back messages of a transaction are in the log only: no unit, queue offset 0. */
static inline bool shmq_is_queued(uint32_t sys_flag)
{
    return (sys_flag & 4u) == 0;
}
SHMQ_API uint32_t shmq_record_bytes(const struct shmq_spec *spec);
/* Write everything but the three late fields and the CRC digits; `out` has shmq_record_bytes() bytes. */
SHMQ_API void shmq_record_encode(uint8_t *out, const struct shmq_spec *spec, struct shmq_patch *patch);
/* Fill queueOffset, physicalOffset, storeTimestamp and the CRC digits; never reads the body. */
SHMQ_API void shmq_record_patch(uint8_t *record, const struct shmq_patch *patch, uint64_t queue_offset,
                       uint64_t log_position, uint64_t store_ms);

struct shmq_view {             /* a decoded record; pointers into the caller's bytes */
    uint32_t record_bytes;
    uint32_t magic;
    uint32_t body_crc;
    uint32_t queue_id;
    uint32_t flag;
    uint64_t queue_offset;
    uint64_t log_position;
    uint32_t sys_flag;
    uint64_t born_ms;
    uint64_t store_ms;
    uint32_t reconsume_times;
    uint64_t prepared_position;
    const uint8_t *born_host;  uint32_t born_host_bytes;   /* 8 or 20 */
    const uint8_t *store_host; uint32_t store_host_bytes;
    const uint8_t *body;       uint32_t body_bytes;
    const char *topic;         uint32_t topic_bytes;
    const char *properties;    uint32_t properties_bytes;  /* as stored, CRC property included */
};
/* Decode without trusting one length; SHMQ_CORRUPT when any field contradicts another, SHMQ_EMPTY on a BLANK
 * or a zero size. Reads no byte at or beyond data + bytes. */
SHMQ_API enum shmq_status shmq_record_decode(const uint8_t *data, size_t bytes, struct shmq_view *view);
/* Check record CRC (if the property is there) and body CRC. */
SHMQ_API enum shmq_status shmq_record_verify(const uint8_t *data, const struct shmq_view *view);
/* The same in one pass, for delivery: the record CRC, which covers the body too; the body CRC where there is none. */
SHMQ_API enum shmq_status shmq_record_check(const uint8_t *data, const struct shmq_view *view);
/* Take the record CRC off a copy of a record, in place; returns its new size, `bytes` when there was none. */
SHMQ_API uint32_t shmq_record_trim(uint8_t *record, uint32_t bytes);
/* RocketMQ's offset message id, store host and log position in upper-case hex; returns its bytes. */
#define SHMQ_MESSAGE_ID_BYTES_MAX (2 * (SHMQ_HOST_BYTES_V6 + sizeof(uint64_t)))
SHMQ_API size_t shmq_message_id(char *out, const uint8_t *host, uint32_t host_bytes, uint64_t log_position);
/* Value of one property in RocketMQ text, or NULL. */
SHMQ_API const char *shmq_property_find(const char *properties, size_t bytes, const char *key, size_t key_bytes,
                                        size_t *value_bytes);

/* ---- what clients send, batch.c ------------------------------------------------------------------------ */
struct shmq_text_facts { const char *tag; size_t tag_bytes; size_t crc_bytes; }; /* crc_bytes: of record CRCs in it */
SHMQ_API void shmq_text_look(const char *text, size_t bytes, struct shmq_text_facts *out);
/* Copy property text without record CRCs, which belong to the record it came from; returns bytes - crc_bytes. */
SHMQ_API size_t shmq_text_copy(char *out, const char *text, size_t bytes);
struct shmq_batch_record {     /* one message of a batch; pointers into the caller's bytes */
    uint32_t flag;
    const uint8_t *body;    uint32_t body_bytes;
    const char *properties; uint32_t properties_bytes;
    const char *reason;        /* of SHMQ_BAD_ARGUMENT: what is wrong with it */
};
/* Read the message at *at and move on; SHMQ_EMPTY at the end. Reads no byte at or beyond data + bytes. */
SHMQ_API enum shmq_status shmq_batch_next(const uint8_t *data, size_t bytes, size_t *at, struct shmq_batch_record *out);

/* ---- the attached store ------------------------------------------------------------------------------- */
struct shmq_mapping {          /* one mapped CommitLog file; views keep it alive */
    uint8_t *data;
    uint64_t base;             /* log position of data[0] */
    uint64_t bytes;
    atomic_int references;
    bool writable;
    int fd;                    /* open as long as the mapping: fdatasync must see errors since before the first store */
    uint64_t populated;        /* bytes below it have page-table entries for storing in this process */
    uint64_t populated_read;   /* bytes below it were asked for when a long record was read */
    const struct shmq_io *io;
};
#define SHMQ_MAPPING_CACHE 16
#define SHMQ_LONG_BYTES (64u << 10) /* from here on filling page tables in one call pays for a single record */

struct shmq_doubt {            /* damage.c: a unit whose record cannot be handed out, and the keeper was asked about it */
    uint64_t since_ns;         /* 0: no doubt */
    uint64_t queue_offset;
    uint64_t log_position;     /* what the unit says, and so below; one that says something else is another doubt */
    uint32_t record_bytes;
    uint64_t ticket;           /* of the report, 0 as long as there was no room for it */
    uint32_t queue;
    bool judged;               /* the keeper was seen to have dealt with it: the next look is the last */
};
#define SHMQ_DOUBTS_MAX 64
#define SHMQ_REBUILD_PATIENCE_NS UINT64_C(10000000000) /* a reader waits so long for the keeper to rebuild a unit */

struct shmq_store {
    struct shmq_head *head;
    struct shmq_log *log;
    struct shmq_topic *topics;
    uint32_t *topic_buckets;   /* open addressing, topic index + 1 */
    struct shmq_queue *queues;
    struct shmq_frame *frames;
    _Atomic uint32_t *frame_buckets;  /* frame index + 1, 0 is empty */
    uint8_t *units;
    struct shmq_readers_head *readers;
    struct shmq_damages *damages;
    struct shmq_client *clients;
    _Atomic uint64_t *waiters;        /* one bitmap a queue: bit (client slot mod 64) */
    struct shmq_group *groups;
    struct shmq_offset *offsets;
    struct shmq_sizes sizes;          /* copied once from the head and checked */
    uint32_t frame_bucket_count;      /* power of two */
    uint32_t topic_bucket_count;      /* power of two */
    uint32_t queue_mask;              /* of the bits in a queue's number that say its entry */
    uint32_t topic_mask;              /* and in a topic's number */
    uint32_t group_mask;              /* and in a group's */
    bool writable;
    bool observing;                   /* even the readers segment is mapped read-only: nothing can be reported */
    bool growable;                    /* the units segment can be grown by shmq_io.allocate(units_fd) */
    int units_fd;
    uint32_t processors;
    uint32_t self_pid;
    uint64_t self_start;
    _Atomic uint64_t client;          /* our client word, as shmq_client_put gave it; 0 until registered */
    const struct shmq_io *io;
    void (*repair)(struct shmq_store *); /* repair.c: what shmq_lock runs when the holder has died */
    uint64_t clock_ticks;             /* append.c: cycle counter and wall clock at the last look at the clock */
    uint64_t clock_ms;
    uint64_t lease_ticks;             /* standing.c: cycle counter at the last look at the lease */
    void *control_map; size_t control_bytes;
    void *units_map; size_t units_bytes;
    void *readers_map; size_t readers_bytes;
    int log_directory;                /* mapping.c: a descriptor of commitlog/, -1 none */
    struct shmq_mapping *mappings[SHMQ_MAPPING_CACHE];
    struct shmq_lookups *lookups;     /* lookup.c */
    void **semaphores;                /* wake.c: sem_t* per client slot, opened lazily */
    uint64_t sleep_ns_max;            /* sleep.c: a sleeper looks again after it, whatever became of its wake-up */
    pthread_mutex_t wait_mutex;       /* sleep.c: threads of this process share one semaphore; one of them waits on it */
    pthread_cond_t wait_turn;
    uint32_t wait_threads;
    bool wait_leader;
    uint64_t wait_round;              /* grows each time the leader comes back */
    _Atomic uint32_t turns;           /* sleep.c: waits in a row that ended when this processor was left to others */
    _Atomic uint32_t interrupts;      /* sleep.c: grows with each shmq_interrupt */
    uint8_t *scratch;                 /* append.c: private encode buffer, SHMQ_BATCH_BYTES_MAX + slack */
    struct shmq_doubt doubts[SHMQ_DOUBTS_MAX];
    int consumequeue_fd;              /* consumequeue.c: one cached ConsumeQueue file, */
    uint32_t consumequeue_queue;      /* of this queue: its name may come again as another file */
    char consumequeue_path[1400];
};

/* Whether it may be the number of a queue; SHMQ_NONE is none, for the mask is at least queue_max. */
static inline bool shmq_queue_is_number(const struct shmq_store *store, uint32_t queue)
{
    return (queue & store->queue_mask) < store->sizes.queue_max;
}
/* For callers that know the queue to live, or judge what they found later: the entry of its number, whatever lives there. */
static inline struct shmq_queue *shmq_queue_place(const struct shmq_store *store, uint32_t queue)
{
    return &store->queues[queue & store->queue_mask];
}
/* The entry of a queue that lives, else NULL. It may become another queue's at any moment: what was read from it holds if
 * shmq_queue_lives says so afterwards. Under the append lock a queue lives on. */
static inline struct shmq_queue *shmq_queue_entry(const struct shmq_store *store, uint32_t queue)
{
    if (!shmq_queue_is_number(store, queue)) {
        return NULL;
    }
    struct shmq_queue *entry = shmq_queue_place(store, queue);
    return atomic_load_explicit(&entry->life, memory_order_acquire) == queue + 1u ? entry : NULL;
}
static inline bool shmq_queue_lives(const struct shmq_store *store, uint32_t queue)
{
    atomic_thread_fence(memory_order_acquire); /* what was read before was read before */
    return shmq_queue_entry(store, queue) != NULL;
}

/* The entry of a topic's number, whatever its state; NULL when it has another name by now, or the number is none. */
static inline struct shmq_topic *shmq_topic_place(const struct shmq_store *store, uint32_t topic)
{
    const uint32_t index = topic & store->topic_mask;
    if (index >= store->sizes.topic_max) {
        return NULL;
    }
    struct shmq_topic *entry = &store->topics[index];
    return atomic_load_explicit(&entry->number, memory_order_acquire) == topic ? entry : NULL;
}
/* Whether what was read from the entry is this topic's. */
static inline bool shmq_topic_holds(const struct shmq_store *store, uint32_t topic)
{
    atomic_thread_fence(memory_order_acquire);
    return shmq_topic_place(store, topic) != NULL;
}

/* The same of a group. */
static inline struct shmq_group *shmq_group_place(const struct shmq_store *store, uint32_t group)
{
    const uint32_t index = group & store->group_mask;
    if (index >= store->sizes.group_max) {
        return NULL;
    }
    struct shmq_group *entry = &store->groups[index];
    return atomic_load_explicit(&entry->number, memory_order_acquire) == group ? entry : NULL;
}
static inline bool shmq_group_holds(const struct shmq_store *store, uint32_t group)
{
    atomic_thread_fence(memory_order_acquire);
    return shmq_group_place(store, group) != NULL;
}

struct shmq_layout { uint64_t control_bytes, units_bytes, readers_bytes; };
SHMQ_API enum shmq_status shmq_layout_compute(const struct shmq_sizes *sizes, struct shmq_layout *layout);
/* Format three zeroed, fully reserved mappings. The magic is stored last. */
struct shmq_format_options {
    struct shmq_sizes sizes;
    uint64_t generation;
    enum shmq_ack_rule ack_rule;
    bool trusts_reads;
    uint8_t store_host[8];
    const char *broker_name;
    const char *store_path;
    uint32_t frame_ready;       /* frames whose memory is reserved already */
    uint64_t clock_stands_ms;   /* 0: the broker's clock is the host's; else it stands there, for tests */
};
SHMQ_API enum shmq_status shmq_store_format(void *control, void *readers, const struct shmq_format_options *options);
/* The broker's clock, ms since the epoch: the host's, ahead of it, or one that stands. Tests move it; clock.c. */
#define SHMQ_CLOCK_STANDS (UINT64_C(1) << 63)
SHMQ_API uint64_t shmq_clock_ms(const struct shmq_store *store);
SHMQ_API void shmq_clock_advance(struct shmq_store *store, uint64_t milliseconds);
/* Attach to mapped segments. The store owns the mappings only if `own_maps`. */
SHMQ_API enum shmq_status shmq_store_attach(struct shmq_store *store, void *control, size_t control_bytes, void *units,
                                   size_t units_bytes, void *readers, size_t readers_bytes, bool writable,
                                   int units_fd, const struct shmq_io *io);
SHMQ_API void shmq_store_detach(struct shmq_store *store);
/* Open the control, units and readers segment by path and attach; NULL with *status, and errno for SHMQ_SYSTEM. */
SHMQ_API struct shmq_store *shmq_store_open(const char *const paths[3], bool writable, enum shmq_status *status);
SHMQ_API void shmq_store_close(struct shmq_store *store); /* and unmap */
SHMQ_API const char *shmq_version(void);                  /* of the library; SHMQ_VERSION_* are those of the header */

/* log files, mapping.c */
/* Whether this process holds the directory that the head names, or finds it at its path; false with errno, ESTALE where
 * another one lies there. */
SHMQ_API bool shmq_log_directory_hold(struct shmq_store *store);
/* A descriptor of the file that holds a position, for reading; -1 + errno. */
SHMQ_API int shmq_log_file_open(struct shmq_store *store, uint64_t log_position);
/* Borrowed, NULL + errno. */
SHMQ_API struct shmq_mapping *shmq_mapping_get(struct shmq_store *store, uint64_t log_position);
SHMQ_API struct shmq_mapping *shmq_mapping_hold(struct shmq_mapping *mapping);
SHMQ_API void shmq_mapping_release(struct shmq_mapping *mapping);
/* Make pages present in memory, from one offset in the file to another, each a multiple of a page; writers then find
 * them. The mapping is writable. */
SHMQ_API void shmq_mapping_make_present(struct shmq_store *store, const struct shmq_mapping *mapping,
                                        uint64_t from, uint64_t until);
SHMQ_API void shmq_mapping_populate_read(struct shmq_mapping *mapping, uint64_t log_position, uint64_t bytes);
/* Drop the page-table entries of this process that lie far behind the log end: they count as its memory. */
SHMQ_API void shmq_mapping_forget(struct shmq_store *store);
/* Let go of files from `position` on: their names go, and may come again as other files. */
SHMQ_API void shmq_mapping_drop(struct shmq_store *store, uint64_t position);
SHMQ_API uint64_t shmq_visible_end(const struct shmq_store *store); /* of what is looked up by log position */
/* Where senders wait for more than the log, they wait for this: the confirmed end by that rule of a broker, else the
 * durable end. */
SHMQ_API uint64_t shmq_safe_end(const struct shmq_store *store);
SHMQ_API enum shmq_ack_rule shmq_queue_rule(const struct shmq_store *store, uint32_t queue);
SHMQ_API bool shmq_queue_is_sync(const struct shmq_store *store, uint32_t queue); /* what is not safe is hidden */
SHMQ_API uint64_t shmq_queue_visible_end(const struct shmq_store *store, uint32_t queue);

/* lock, lock.c: SHMQ_WOULD_BLOCK when deadline_ns is 0 and the lock is taken; repairs after a dead holder */
SHMQ_API enum shmq_status shmq_lock(struct shmq_store *store, uint64_t deadline_ns);
SHMQ_API void shmq_unlock(struct shmq_store *store);
SHMQ_API uint64_t shmq_process_start(uint32_t pid);  /* 0: no such process, a zombie, or one that /proc hides */
/* True only with proof: no such process, it has ended, or the pid belongs to one that started later. A start of 0 is any. */
SHMQ_API bool shmq_process_died(uint32_t pid, uint64_t start);

/* append.c */
struct shmq_appended { uint64_t queue_offset; uint64_t log_position; uint64_t end; uint64_t store_ms; };
/* Append one record to a queue. deadline_ns 0 never blocks. */
SHMQ_API enum shmq_status shmq_append(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec,
                             int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out);
/* The most bytes of records that one batch stores: they lie in one file, which ends with a BLANK. */
static inline uint32_t shmq_batch_bytes_max(const struct shmq_store *store)
{
    const uint64_t room = store->sizes.file_bytes - SHMQ_RECORD_BLANK_BYTES;
    return room < SHMQ_RECORD_BYTES_MAX ? (uint32_t)room : SHMQ_RECORD_BYTES_MAX;
}
/* Append records, at most shmq_batch_bytes_max encoded, to one queue: all or none. */
SHMQ_API enum shmq_status shmq_append_batch(struct shmq_store *store, uint32_t queue, const struct shmq_spec *specs,
                                   const int64_t *tag_hashes, uint32_t count, uint64_t deadline_ns,
                                   struct shmq_appended *first);
/* together.c: records of different queues, all or none */
struct shmq_entry { uint32_t queue; int64_t tag_hash; struct shmq_spec spec; };
/* Append up to SHMQ_TOGETHER_MAX records in this order, one a queue, of any length: `out` gets as many answers.
 * SHMQ_FENCED, and nothing is done, when log position `because_of` lies below the fence; UINT64_MAX never does. */
SHMQ_API enum shmq_status shmq_append_together(struct shmq_store *store, const struct shmq_entry *entries,
                                               uint32_t count,
                                      uint64_t because_of, uint64_t deadline_ns, struct shmq_appended *out);
SHMQ_API enum shmq_status shmq_fence_raise(struct shmq_store *store, uint64_t log_position, uint64_t deadline_ns);
/* replicate.c: what a master's log holds from a position on, the end of this log. */
struct shmq_shipped {
    const uint8_t *data;
    size_t bytes;
    uint64_t log_position;
    const uint64_t *delays_ms; /* of the schedule topic's queues: their units say due times */
    uint32_t delay_count;
    uint64_t judged_end;       /* below it the caller has judged the first record of each queue; 0: it does not ask */
    uint64_t epoch;            /* of the master that ships; an older one than was heard of is refused */
};
struct shmq_replicated {
    uint64_t end;              /* as far as the log was taken: what lies below it is not wanted again */
    uint32_t records;
    const char *reason;        /* of SHMQ_CORRUPT */
    const char *topic;         /* of the record that could not be taken, in the caller's bytes, or NULL */
    uint32_t topic_bytes, queue_id;
};
/* Take whole records; a part of one at the end waits for the rest. SHMQ_NO_TOPIC, SHMQ_NO_QUEUE: make it first, then come
 * again. SHMQ_LOG_FULL: the keeper makes a file. SHMQ_READ_ONLY: this log follows no master, or the disk is full.
 * SHMQ_FENCED: the master is one of an older epoch. */
SHMQ_API enum shmq_status shmq_replicate(struct shmq_store *store, const struct shmq_shipped *shipped,
                                         uint64_t deadline_ns, struct shmq_replicated *out);
/* standing.c: who is the master. Follow one: from now on records come by shmq_replicate only. Before another process is
 * attached. */
SHMQ_API enum shmq_status shmq_follow(struct shmq_store *store, const char *leader, uint64_t deadline_ns);
/* Take records as the master of an epoch, which is on the disk already. Transactions of before cannot be ended by others. */
SHMQ_API enum shmq_status shmq_lead(struct shmq_store *store, uint64_t epoch, uint64_t deadline_ns);
/* Take no record any more; `leader` is who does, or "". SHMQ_BROKER_BUSY: it is done, and an append may be under way. */
SHMQ_API enum shmq_status shmq_fence_off(struct shmq_store *store, const char *leader, uint64_t deadline_ns);
/* Take records until a time on CLOCK_BOOTTIME; 0: without end. What is not said in time fences; only shmq_lead undoes that.
 */
SHMQ_API enum shmq_status shmq_lease(struct shmq_store *store, uint64_t until_ns);
/* Wait until shmq_safe_end >= position (sync flush); takes the flush itself if the keeper is dead. */
SHMQ_API enum shmq_status shmq_wait_durable(struct shmq_store *store, uint64_t position, uint64_t deadline_ns);
SHMQ_API enum shmq_status shmq_flush(struct shmq_store *store, uint64_t *durable_end); /* fdatasync, raise, wake */
SHMQ_API void shmq_raise_durable(struct shmq_store *store, uint64_t position);
/* confirm.c: what replicas have on their disks; by one process only, and only where the rule is SHMQ_ACK_CONFIRMED. */
struct shmq_in_sync {
    uint64_t end;              /* on the disk of each of them; UINT64_MAX: no replica is needed now */
    uint32_t count;
    bool lacks_replicas;       /* there are too few: no record is taken */
};
/* Never below the confirmed end, which comes back in `confirmed_end` if that is not NULL. SHMQ_TIMED_OUT: a flush takes too
 * long, and nothing has changed. */
SHMQ_API enum shmq_status shmq_confirm(struct shmq_store *store, const struct shmq_in_sync *in_sync,
                                       uint64_t deadline_ns, uint64_t *confirmed_end);
/* state.c: sleep until the log end has reached a position (SHMQ_OK), or the bell is rung, or a time. One thread of one
 * process: the one that ships the log. */
SHMQ_API enum shmq_status shmq_ship_wait(struct shmq_store *store, uint64_t position, uint64_t deadline_ns);
/* state.c: ask the keeper to bring the log to disk up to a position, without waiting for it. */
SHMQ_API void shmq_want_durable(struct shmq_store *store, uint64_t position);
/* flusher.c: the keeper's flush thread. Syncs back to back while a process waits, else sleeps. */
struct shmq_flusher {
    bool always;               /* whatever was appended is wanted: a synchronous broker */
    uint64_t interval_ns;      /* else what none waits for is flushed this long after the last flush */
    uint64_t due_ns;           /* and so at this time; 0 before the first stretch */
    uint32_t errands_seen;
    uint64_t began_ms;         /* wall clock when the last complete flush began; 0: none in this stretch */
    const uint64_t *bounds;    /* in nanoseconds, rising; how long flushes took is counted by them */
    uint32_t bound_count;
    uint64_t *counts;          /* one a bound, one above the last, and the sum of all */
};
/* Work until a time, or until an errand was rung for. Anything but SHMQ_OK: a flush failed, which is final. */
SHMQ_API enum shmq_status shmq_flusher_work(struct shmq_store *store, struct shmq_flusher *flusher, uint64_t until_ns);
/* Sleep until the durable end is above a position (SHMQ_OK), or a time (SHMQ_TIMED_OUT); wants nothing. */
SHMQ_API enum shmq_status shmq_durable_follow(struct shmq_store *store, uint64_t position, uint64_t deadline_ns);
SHMQ_API void shmq_set_read_only(struct shmq_store *store, uint32_t word);
/* What the keeper alone says of the log: up to where it has files, where it begins, where recovery found its end. */
SHMQ_API void shmq_set_allocated_end(struct shmq_store *store, uint64_t position);
/* Name the directory of the log's files by a descriptor of it; false with errno. */
SHMQ_API bool shmq_set_log_directory(struct shmq_store *store, int directory);
SHMQ_API void shmq_set_log_begin(struct shmq_store *store, uint64_t position);
SHMQ_API void shmq_set_log_end(struct shmq_store *store, uint64_t position);
/* Behind it, where another host may lead: no more than this is known to be confirmed. */
SHMQ_API void shmq_set_confirmed_end(struct shmq_store *store, uint64_t position);
SHMQ_API void shmq_retire(struct shmq_store *store); /* these segments are given up: wakes all, who attach again */
/* room.c: let the log's files end at `position`. SHMQ_WOULD_BLOCK: a writer is at work, or less than a file away. */
SHMQ_API enum shmq_status shmq_room_give_back(struct shmq_store *store, uint64_t position);

/* reserve.c: two phases for long records and for reserve() */
struct shmq_claim_handle {
    uint64_t serial; uint64_t log_position; uint64_t bytes;
    uint32_t queue; uint32_t body_bytes_max; uint32_t tail_bytes_max; /* topic + properties room behind the body */
    uint8_t *body;                     /* writable, in the log */
    struct shmq_mapping *mapping;      /* held until commit or abort */
};
SHMQ_API enum shmq_status shmq_claim_open(struct shmq_store *store, uint32_t queue, uint32_t body_bytes_max,
                                 uint32_t tail_bytes_max, uint64_t deadline_ns, struct shmq_claim_handle *claim);
/* spec->body must be NULL and body_crc_raw set; consumes the handle on SHMQ_OK. After SHMQ_EVICTED the body is still at
 * claim->body: copy it with shmq_append, then call shmq_claim_abort, which settles the hole that was left. */
SHMQ_API enum shmq_status shmq_claim_commit(struct shmq_store *store, struct shmq_claim_handle *claim,
                                            const struct shmq_spec *spec,
                                   int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out);
SHMQ_API void shmq_claim_abort(struct shmq_store *store, struct shmq_claim_handle *claim);
/* Copy the body; returns its CRC register. */
SHMQ_API uint32_t shmq_claim_fill(uint8_t *to, const struct shmq_spec *spec);
/* How the steps of a long append are run: a caller with a lock of its own (the GIL) lets it go where a step waits. */
struct shmq_claim_steps {
    enum shmq_status (*open)(void *context, uint32_t queue, uint32_t body_bytes_max, uint32_t tail_bytes_max,
                             uint64_t deadline_ns, struct shmq_claim_handle *claim);
    uint32_t (*fill)(uint8_t *to, const struct shmq_spec *spec);
    enum shmq_status (*commit)(void *context, struct shmq_claim_handle *claim, const struct shmq_spec *spec,
                               int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out);
    void (*abort)(void *context, struct shmq_claim_handle *claim);
};
/* The functions above; their context is the store. */
SHMQ_API extern const struct shmq_claim_steps shmq_claim_steps_plain;
/* Append a record of any length under a claim, again where it was evicted. What shmq_append does with long ones. */
SHMQ_API enum shmq_status shmq_append_long(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec,
                                  int64_t tag_hash, uint64_t deadline_ns, const struct shmq_claim_steps *steps,
                                  void *context, struct shmq_appended *out);

/* ConsumeQueue units: log_position 8 | record_bytes 4 | tag_hash 8, big-endian, in memory as in a ConsumeQueue file */
enum { SHMQ_UNIT_LOG_POSITION_AT = 0, SHMQ_UNIT_RECORD_BYTES_AT = 8, SHMQ_UNIT_TAG_HASH_AT = 12 };
struct shmq_unit { uint64_t log_position; uint32_t record_bytes; int64_t tag_hash; };
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the byte swaps below assume a little-endian host");
static inline void shmq_unit_pack(uint8_t out[SHMQ_UNIT_BYTES], const struct shmq_unit *unit)
{
    const uint64_t log_position = __builtin_bswap64(unit->log_position);
    const uint32_t record_bytes = __builtin_bswap32(unit->record_bytes);
    const uint64_t tag_hash = __builtin_bswap64((uint64_t)unit->tag_hash);
    memcpy(out + SHMQ_UNIT_LOG_POSITION_AT, &log_position, sizeof log_position);
    memcpy(out + SHMQ_UNIT_RECORD_BYTES_AT, &record_bytes, sizeof record_bytes);
    memcpy(out + SHMQ_UNIT_TAG_HASH_AT, &tag_hash, sizeof tag_hash);
}
static inline void shmq_unit_unpack(const uint8_t in[SHMQ_UNIT_BYTES], struct shmq_unit *unit)
{
    uint64_t log_position, tag_hash;
    uint32_t record_bytes;
    memcpy(&log_position, in + SHMQ_UNIT_LOG_POSITION_AT, sizeof log_position);
    memcpy(&record_bytes, in + SHMQ_UNIT_RECORD_BYTES_AT, sizeof record_bytes);
    memcpy(&tag_hash, in + SHMQ_UNIT_TAG_HASH_AT, sizeof tag_hash);
    unit->log_position = __builtin_bswap64(log_position);
    unit->record_bytes = __builtin_bswap32(record_bytes);
    unit->tag_hash = (int64_t)__builtin_bswap64(tag_hash);
}
/* Copy up to `count` units from queue offset `first`; stops at a frame that is no longer in memory. Lock-free. */
SHMQ_API uint32_t shmq_units_read(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count,
                                  uint8_t *out);
/* Same from the ConsumeQueue files of the store directory (old units). */
SHMQ_API uint32_t shmq_units_read_file(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count,
                                       uint8_t *out);
/* From memory, else from the files. */
SHMQ_API uint32_t shmq_units_stored(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count,
                                    uint8_t *out);
/* Put units back after a restart (the caller is the only writer): sets offset_max too. */
SHMQ_API enum shmq_status shmq_units_restore(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count,
                                             const uint8_t *units);
SHMQ_API enum shmq_status shmq_frames_grow(struct shmq_store *store, uint32_t frames);
/* Give back up to `count` full frames of `queue` whose units are all persisted, of a queue that is leaving any; returns how
 * many, SHMQ_NONE when the lock could not be had. */
SHMQ_API uint32_t shmq_frames_release(struct shmq_store *store, uint32_t queue, uint64_t ordinal_first,
                                      uint32_t count, uint64_t deadline_ns);

/* damage.c: the keeper's side. SHMQ_OK: *out is the oldest report not yet judged; SHMQ_EMPTY: there is none;
 * SHMQ_WOULD_BLOCK: its writer has not finished, or died: judge it unread if it stays so. */
struct shmq_damage_report {
    enum shmq_damage_kind kind;
    uint32_t queue;            /* or SHMQ_NONE */
    uint32_t record_bytes;
    uint64_t queue_offset;
    uint64_t log_position;
};
SHMQ_API enum shmq_status shmq_damage_take(struct shmq_store *store, struct shmq_damage_report *out);
SHMQ_API void shmq_damage_settle(struct shmq_store *store); /* the oldest report is judged: readers look again */

/* lookup.c: how many entries were looked at to find groups and offset slots, since the store was attached. */
SHMQ_API uint64_t shmq_lookup_probes(const struct shmq_store *store);
/* table.c, member.c: topics; groups, offsets, clients; all changes under table_lock */
SHMQ_API enum shmq_status shmq_topic_put(struct shmq_store *store, const char *name, uint32_t read_queues,
                                         uint32_t write_queues,
                                uint32_t perm, uint32_t flags, uint32_t kind, uint32_t *topic);
SHMQ_API enum shmq_status shmq_topic_set_flush(struct shmq_store *store, uint32_t topic, uint32_t mode);
SHMQ_API enum shmq_status shmq_topic_delete(struct shmq_store *store, const char *name);
/* Let another topic have the entry of one that was deleted at this version, for good: the keeper, when nothing of it is left to
 * do. SHMQ_WOULD_BLOCK: a queue of it is not free yet. SHMQ_NO_TOPIC: it is not that topic any more, or it was made anew. */
SHMQ_API enum shmq_status shmq_topic_free(struct shmq_store *store, uint32_t topic, uint32_t version);
/* Number or SHMQ_NONE. */
SHMQ_API uint32_t shmq_topic_find(const struct shmq_store *store, const char *name, size_t bytes);
/* Queue index or SHMQ_NONE. */
SHMQ_API uint32_t shmq_topic_queue(const struct shmq_store *store, uint32_t topic, uint32_t queue_id);
/* queue.c: end the lives of queues that no topic has. Writes down up to `count_max` of those that are leaving, these and
 * those of before; when their frames are given back, shmq_queue_free lets others have their entries. */
struct shmq_leaving { uint32_t queue; uint64_t offset_max; };
SHMQ_API enum shmq_status shmq_queues_close(struct shmq_store *store, uint64_t deadline_ns, uint32_t count_max,
                                            struct shmq_leaving *out, uint32_t *count);
SHMQ_API enum shmq_status shmq_queue_free(struct shmq_store *store, uint32_t queue);
/* A restored queue, whole; SHMQ_BAD_ARGUMENT: first or persisted above the end. */
SHMQ_API enum shmq_status shmq_queue_publish(struct shmq_store *store, uint32_t queue, uint64_t first,
                                             uint64_t persisted, uint64_t end);
SHMQ_API enum shmq_status shmq_queue_set_persisted(struct shmq_store *store, uint32_t queue, uint64_t persisted);
SHMQ_API enum shmq_status shmq_queue_set_offset_min(struct shmq_store *store, uint32_t queue, uint64_t first);
/* Groups by number, as topics; numbers stay below 2^31. */
SHMQ_API enum shmq_status shmq_group_put(struct shmq_store *store, const char *name, uint32_t *group);
SHMQ_API uint32_t shmq_group_find(const struct shmq_store *store, const char *name);
SHMQ_API enum shmq_status shmq_group_delete(struct shmq_store *store, const char *name);
/* What a group is configured with, as text of the caller's; empty until set. */
SHMQ_API enum shmq_status shmq_group_set(struct shmq_store *store, uint32_t group, const char *text, uint32_t bytes);
/* Copies at most SHMQ_GROUP_SETTINGS_BYTES_MAX bytes to `out`; returns how many. */
SHMQ_API uint32_t shmq_group_settings(const struct shmq_store *store, uint32_t group, char *out);
/* What a slot is for. Each call on a slot names it: the slot may become that of another group, or queue, at any
 * moment. */
static inline uint64_t shmq_offset_place(uint32_t group, uint32_t queue)
{
    return (uint64_t)group << 32 | queue;
}
SHMQ_API enum shmq_status shmq_offset_put(struct shmq_store *store, uint32_t group, uint32_t queue, uint32_t *slot);
/* offset.c: the slot of a group and a queue as it is, SHMQ_NONE when there is none. */
SHMQ_API uint32_t shmq_offset_find(const struct shmq_store *store, uint32_t group, uint32_t queue);
/* The slot that is, was, or will be that of a place; SHMQ_NONE when there is none. */
SHMQ_API uint32_t shmq_offset_slot(const struct shmq_store *store, uint64_t place);
/* Set what is committed; false, and nothing is changed, when the slot is for another place by now. */
SHMQ_API bool shmq_offset_commit(struct shmq_offset *entry, uint64_t place, uint64_t committed);
/* What is committed, the next queue offset plus 1; 0: never set, or the slot is for another place. */
SHMQ_API uint64_t shmq_offset_get(const struct shmq_offset *entry, uint64_t place);
/* Set the next queue offset to deliver, and when; false, and nothing is changed: as above, or there is no such offset. */
#define SHMQ_QUEUE_OFFSET_MAX ((uint64_t)INT64_MAX - 1)
SHMQ_API bool shmq_offset_set(const struct shmq_store *store, struct shmq_offset *entry, uint64_t place,
                              uint64_t queue_offset);
/* Count messages that cleaning took before the group had acknowledged them; `seconds` of the wall clock. */
SHMQ_API void shmq_offset_lose(struct shmq_offset *entry, uint64_t place, uint64_t count, uint64_t seconds);

/* A client slot in one of its lives: slot + 1 | generation << 32; 0 is none. What a process does with its slot it does with
 * the word it was given: when the slot was taken back meanwhile, and perhaps is another process' by now, the word fits no more. */
SHMQ_API enum shmq_status shmq_client_put(struct shmq_store *store, uint32_t pid, uint64_t start, uint32_t role,
                                          uint64_t *client);
SHMQ_API void shmq_client_drop(struct shmq_store *store, uint32_t slot);
/* Be the client of that word from now on; threads that wait look again. */
SHMQ_API void shmq_client_use(struct shmq_store *store, uint64_t client);
/* The slot of a client word, SHMQ_NONE of none. */
static inline uint32_t shmq_client_slot(uint64_t client)
{
    return (uint32_t)client - 1u;
}
/* The word of a slot in its present life: for the process that hands slots out. */
static inline uint64_t shmq_client_word(const struct shmq_store *store, uint32_t slot)
{
    return (uint64_t)atomic_load_explicit(&store->clients[slot].generation, memory_order_acquire) << 32 | (slot + 1u);
}
/* Whether the slot is handed out, and still in the life that the word says. */
static inline bool shmq_client_lives(const struct shmq_store *store, uint64_t client)
{
    const uint32_t slot = shmq_client_slot(client);
    return slot < store->sizes.client_max &&
           atomic_load_explicit(&store->clients[slot].state, memory_order_acquire) != SHMQ_CLIENT_FREE &&
           atomic_load_explicit(&store->clients[slot].generation, memory_order_acquire) == (uint32_t)(client >> 32);
}
/* Our client word, 0 when we have none, or our slot was taken back. */
static inline uint64_t shmq_client_own(const struct shmq_store *store)
{
    const uint64_t client = atomic_load_explicit(&store->client, memory_order_acquire);
    return shmq_client_lives(store, client) ? client : 0;
}

/* owner.c: who reads a queue for a group. `entry` is &store->offsets[slot]; where it is for another place by now, each of
 * these answers no and changes nothing. A member has a client slot: shmq_client_put, then shmq_client_use; when it was
 * taken back, the member owns nothing and is given nothing. */
#define SHMQ_OWNER_LOCK (UINT32_C(1) << 31)  /* in the low half of an owner word: a client over TCP has it */
#define SHMQ_OWNER_MOVING UINT64_MAX         /* the slot becomes another place's */
#define SHMQ_OWNER_HOLDER_MAX (SHMQ_OWNER_LOCK - 1u)
#define SHMQ_OWNER_UNTIL_MS_MAX ((UINT64_C(1) << 38) - 129) /* of the monotonic clock: 8 years after its start */
struct shmq_owner_lock { uint32_t holder; uint64_t now_ms, life_ms; }; /* 31 bits of the holder; monotonic clock */
/* Become the owner where no living one is; true: it is ours. */
SHMQ_API bool shmq_owner_take(struct shmq_store *store, struct shmq_offset *entry, uint64_t place);
SHMQ_API void shmq_owner_leave(struct shmq_store *store, struct shmq_offset *entry, uint64_t place);
/* Whether we own it. */
SHMQ_API bool shmq_owner_is_own(const struct shmq_store *store, const struct shmq_offset *entry, uint64_t place);
/* offset.c: set the next queue offset to deliver, as the owner; false, and nothing is changed, when we do not own it. */
SHMQ_API bool shmq_owner_commit(struct shmq_store *store, struct shmq_offset *entry, uint64_t place,
                                uint64_t queue_offset);
/* Whether holder and end of a lock fit into a word. */
static inline bool shmq_owner_lock_fits(const struct shmq_owner_lock *lock)
{
    return lock->holder <= SHMQ_OWNER_HOLDER_MAX && lock->now_ms <= SHMQ_OWNER_UNTIL_MS_MAX &&
           lock->life_ms <= SHMQ_OWNER_UNTIL_MS_MAX - lock->now_ms;
}
/* False also where it does not fit. */
SHMQ_API bool shmq_owner_lock(struct shmq_store *store, struct shmq_offset *entry, uint64_t place,
                              const struct shmq_owner_lock *lock);
SHMQ_API void shmq_owner_unlock(struct shmq_offset *entry, uint64_t place, uint32_t holder);
/* Take it away from its owner, who finds out when it next looks. */
SHMQ_API void shmq_owner_free(struct shmq_offset *entry, uint64_t place);
/* Client slot of the living local owner, SHMQ_NONE without one. */
SHMQ_API uint32_t shmq_owner_find(const struct shmq_store *store, const struct shmq_offset *entry, uint64_t place);
SHMQ_API uint32_t shmq_owner_of(const struct shmq_store *store, uint64_t word);
static inline bool shmq_owner_is_local(uint64_t word)
{
    return (uint32_t)word && !((uint32_t)word & SHMQ_OWNER_LOCK);
}
/* Show how far a reader without a client slot was handed messages, unless a local member reads the queue. */
SHMQ_API void shmq_owner_show(struct shmq_store *store, struct shmq_offset *entry, uint64_t place, uint64_t taken);

/* wake.c */
/* Writer side: after commit, outside the lock. One is woken, or two, and they wake the others. */
SHMQ_API void shmq_wake(struct shmq_store *store, uint32_t queue);
/* As shmq_wake, but the caller's own client slot sleeps on: its process knows already. */
SHMQ_API void shmq_wake_others(struct shmq_store *store, uint32_t queue);
SHMQ_API void shmq_wake_all(struct shmq_store *store);

/* sleep.c */
/* Let the threads of this process that wait look again. */
SHMQ_API void shmq_wake_own(struct shmq_store *store);
/* Sleep until one of the queues moves past its offset, or deadline. Sets the waiter bits, re-checks, sleeps. */
SHMQ_API enum shmq_status shmq_wait(struct shmq_store *store, const uint32_t *queues, const uint64_t *offsets,
                                    uint32_t count,
                           uint32_t spin_us, uint64_t deadline_ns);
struct shmq_watch {            /* what a wait ends for */
    const uint32_t *queues;    /* one of them has a visible message at or behind its offset */
    const uint64_t *offsets;
    uint32_t count;
    uint64_t safe_end;         /* with sync flush: shmq_safe_end has reached it; UINT64_MAX: never mind */
    bool interruptible;        /* shmq_interrupt was called more than `interrupts_seen` times */
    uint32_t interrupts_seen;
};
/* As shmq_wait, for any of these. */
SHMQ_API enum shmq_status shmq_wait_for(struct shmq_store *store, const struct shmq_watch *watch, uint32_t spin_us,
                               uint64_t deadline_ns);
/* End the interruptible waits of this handle, from any thread: those that sleep, and the next to begin. */
SHMQ_API void shmq_interrupt(struct shmq_store *store);
SHMQ_API void shmq_ring_keeper(struct shmq_store *store);

/* ---- test points: named places between protocol steps; nothing at all without SHMQ_TEST_POINTS -------- */
#ifdef SHMQ_TEST_POINTS
void shmq_test_point(const char *name);
#define SHMQ_POINT(name) shmq_test_point(name)
#else
#define SHMQ_POINT(name) ((void)0)
#endif

#endif
