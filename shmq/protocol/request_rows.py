"""The requests of RocketMQ 4.9.8 and 5.3.3, one row each: sender and receiver, class, header fields.

`request_table` reads these rows; names of codes are in `codes`.

    code  way  class  field field …          a row goes on in lines that start with a blank

    way      sender > receiver: client (admin tools too), broker, slave, namesrv, controller, local (our socket)
    class    client     what any client does        admin    what an administrator does
             internal   servers among themselves    refused  never served: obsolete, or dangerous
    field    name[!][:int|:long|:bool]              "!" must be there; without a type it is text

Fields every request may carry are not repeated: `bname`, `ReqT`, and from 5.x on `ns`, `nsd`, `oway`, `lo`; with ACL
`AccessKey`, `Signature`, `SecurityToken`. Fields that only shmq's own client sends are not here either.
"""

from __future__ import annotations

_SEND = """ producerGroup! topic! defaultTopic! defaultTopicQueueNums!:int queueId!:int sysFlag!:int bornTimestamp!:long
 flag!:int properties reconsumeTimes:int unitMode:bool batch:bool maxReconsumeTimes:int
"""
_SEND_SHORT = """ a! b! c! d!:int e!:int f!:int g!:long h!:int i j:int k:bool l:int m:bool n
"""
_PULL = """ consumerGroup! topic! queueId!:int queueOffset!:long maxMsgNums!:int sysFlag!:int commitOffset!:long
 suspendTimeoutMillis!:long subscription subVersion!:long expressionType maxMsgBytes:int requestSource:int
 proxyFrowardClientId
"""
_CREATE_TOPIC = """ topic! defaultTopic! readQueueNums!:int writeQueueNums!:int perm!:int topicFilterType!
 topicSysFlag:int order!:bool attributes force:bool
"""

CLIENT_ROWS = f"""
10 client>broker client
{_SEND}
11 client>broker client
{_PULL}
12 client>broker client topic! key maxNum!:int beginTimestamp!:long endTimestamp!:long
13 client>broker refused
14 client>broker client consumerGroup! topic! queueId!:int setZeroIfNotFound:bool
15 client>broker client consumerGroup! topic! queueId!:int commitOffset!:long
29 client>broker client topic! queueId!:int timestamp!:long boundaryType
30 client>broker client topic! queueId!:int committed:bool
31 client>broker client topic! queueId!:int
32 client>broker client topic! queueId!:int
33 client>broker client offset!:long topic
34 client>broker client
35 client>broker client clientID! producerGroup consumerGroup
36 client>broker client offset!:long group! delayLevel!:int originMsgId originTopic unitMode:bool maxReconsumeTimes:int
37 client>broker client producerGroup! tranStateTableOffset!:long commitLogOffset!:long commitOrRollback!:int
 fromTransactionCheck:bool msgId! transactionId topic
38 client>broker client consumerGroup!
41 client>broker client
42 client>broker client
46 client>broker client
47 client>broker refused
105 client>namesrv client topic! acceptStandardJsonOnly:bool
310 client>broker client
{_SEND_SHORT}
320 client>broker client
{_SEND_SHORT}
324 client>broker client
{_SEND}
325 client>broker client
{_SEND_SHORT}
361 client>broker client
{_PULL}
370 client>broker client producerGroup topic! recallHandle!
400 client>broker client
30014 client>broker client topic! queueId!:int queueOffset!:long queueEnd!:long born:long bytesMax:int tags units:bool
30015 client>broker client topic!
200050 client>broker client consumerGroup! topic! queueId!:int maxMsgNums!:int invisibleTime!:long pollTime!:long
 bornTime!:long initMode!:int expType exp order:bool attemptId places:bool
200051 client>broker client consumerGroup! topic! queueId!:int extraInfo! offset!:long
200052 client>broker client topic! queueId!:int maxMsgNums!:int consumerGroup!
200053 client>broker client consumerGroup! topic! queueId!:int extraInfo! offset!:long invisibleTime!:long
200054 client>broker client consumerGroup! topic! queueId!:int pollTime!:long bornTime!:long order:bool attemptId
200055 client>broker client consumerGroup! topic! queueId!:int
200056 client>broker refused
200151 client>broker client

39 broker>client client tranStateTableOffset!:long commitLogOffset!:long msgId transactionId offsetMsgId topic
40 broker>client client consumerGroup!
220 broker>client client topic! group! timestamp!:long isForce!:bool queueId:int offset:long
221 broker>client client topic! group! clientAddr
326 broker>client client producerGroup! topic! defaultTopic! defaultTopicQueueNums!:int queueId!:int sysFlag!:int
 bornTimestamp!:long flag!:int properties reconsumeTimes:int unitMode:bool bornHost! storeHost! storeTimestamp!:long
"""

ADMIN_ROWS = f"""
17 client>broker admin
{_CREATE_TOPIC}
18 client>broker admin
22 client>broker refused
23 client>broker refused
25 client>broker admin
26 client>broker admin
27 client>broker refused
28 client>broker admin
200 client>broker admin
202 client>broker admin topic!
203 client>broker admin consumerGroup!
204 client>broker admin producerGroup!
207 client>broker admin groupName! removeOffset:bool cleanOffset:bool
208 client>broker admin consumerGroup! topic topicList
209 client>broker refused
210 client>broker refused
211 client>broker refused
212 client>broker refused
213 client>broker refused
214 client>broker refused
215 client>broker admin topic!
222 client>broker admin topic! group! timestamp!:long isForce!:bool queueId:int offset:long
223 client>broker admin topic! group! clientAddr
225 client>broker admin
300 client>broker admin topic!
301 client>broker refused filterServerAddr!
302 client>broker refused consumerGroup! topic! className! classCRC!:int
303 client>broker admin topic! group!
305 client>broker admin
306 client>broker admin
307 client>broker admin consumerGroup! clientId! jstackEnable:bool
308 client>broker admin filterGroups compareGroup! topic!
309 client>broker admin consumerGroup! clientId msgId brokerName topic topicSysFlag:int groupSysFlag:int
314 client>broker admin srcGroup! destGroup! topic offline:bool
315 client>broker admin statsName! statsKey!
316 client>broker admin
317 client>broker admin isOrder!:bool
321 client>broker admin topic queueId:int index:long count:int consumerGroup
323 client>broker admin msgId topic
328 client>broker admin
329 client>broker admin
343 client>broker admin group!
345 client>broker admin group! topic
351 client>broker admin topic!
352 client>broker admin group!
353 client>broker admin group! topic! readable:bool
354 client>broker refused topic! checkStoreTime:long
355 client>broker refused configType!
401 client>broker admin
513 client>broker refused
{_CREATE_TOPIC}
902 client>broker refused configPath
903 client>broker refused brokerName! brokerClusterName! brokerId!:long
907 client>broker admin
908 client>broker refused masterFlushOffset!:long
2001 client>broker refused
2002 client>broker refused
2003 client>broker refused
2004 client>broker refused
50 client>broker refused accessKey! secretKey whiteRemoteAddress admin:bool defaultTopicPerm defaultGroupPerm topicPerms
 groupPerms
51 client>broker refused accessKey!
52 client>broker refused
53 client>broker refused globalWhiteAddrs! aclFileFullPath!
3001 client>broker refused username
3002 client>broker refused username
3003 client>broker refused username
3004 client>broker refused username
3005 client>broker refused filter
3006 client>broker refused subject
3007 client>broker refused subject
3008 client>broker refused subject policyType resource
3009 client>broker refused subject
3010 client>broker refused subjectFilter resourceFilter

100 client>namesrv admin namespace! key! value!
101 client>namesrv admin namespace! key!
102 client>namesrv admin namespace! key!
106 client>namesrv admin
205 client>namesrv admin brokerName!
206 client>namesrv admin
216 client>namesrv admin topic! clusterName
219 client>namesrv admin namespace!
224 client>namesrv admin cluster!
304 client>namesrv admin
311 client>namesrv admin
312 client>namesrv admin
313 client>namesrv admin
318 client>namesrv admin
319 client>namesrv admin
327 client>namesrv admin brokerName!
"""

INTERNAL_ROWS = """
21 slave>broker internal
43 slave>broker internal
45 slave>broker internal
201 slave>broker internal
60 slave>broker internal
61 slave>broker internal
402 slave>broker internal
906 slave>broker internal masterHaAddress masterFlushOffset:long masterAddress
103 broker>namesrv internal brokerName! brokerAddr! clusterName! haServerAddr! brokerId!:long
 heartbeatTimeoutMillis:long enableActingMaster:bool compressed:bool bodyCrc32:int
104 broker>namesrv internal brokerName! brokerAddr! clusterName! brokerId!:long
217 broker>namesrv internal topic!
322 broker>namesrv internal brokerName! brokerAddr! clusterName! brokerId!:long
901 broker>namesrv internal clusterName! brokerName!
904 broker>namesrv internal clusterName! brokerAddr! brokerName! brokerId:long epoch:int maxOffset:long
 confirmOffset:long heartbeatTimeoutMills:long electionPriority:int
905 namesrv>broker internal minBrokerId:long brokerName minBrokerAddr offlineBrokerAddr haBrokerAddr

1001 broker>controller refused
1002 broker>controller refused
1003 broker>controller refused
1004 broker>controller refused
1005 broker>controller refused
1006 broker>controller refused
1007 client>broker refused
1008 controller>broker refused
1009 client>controller refused
1010 client>controller refused
1011 client>controller refused
1012 broker>controller refused
1013 broker>controller refused
1014 controller>controller refused
1015 controller>controller refused
1016 controller>controller refused
1017 controller>controller refused
1018 controller>controller refused

30001 local>broker internal
30002 local>broker internal
30003 local>broker internal
30004 local>broker internal
30005 local>broker internal
30006 local>broker internal tranStateTableOffset!:long
30007 local>broker internal count:int
30009 local>broker internal milliseconds!:long
30010 local>broker internal remote! local!
30011 local>broker internal
30012 local>local internal consumerGroup!
30013 local>local internal
30101 client>broker client writer! batch!:long partition!:int attempt! unit!:int chunk!:int topic!
 queueId!:int delayed:bool
30102 client>broker client writer! batch!:long unit!:int topic rows!:long checksum!:long
30103 client>broker client writer! batch!:long unit!:int topic attempt
30104 client>broker client writer! batch!:long unit!:int topic
"""
