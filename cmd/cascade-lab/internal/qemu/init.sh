#!/bin/busybox sh
# The guest's first process: it sets up soft-RoCE on a dummy interface and runs the tests.
# The host parses what follows "rdma-check:".
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
echo 1 >/proc/sys/kernel/printk
for m in crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe dummy; do
	[ -e /modules/$m.ko ] && insmod /modules/$m.ko || echo "no module $m: it is part of the kernel, or is missing"
done
ip link set lo up
ip link set dummy0 up || { ip link add dummy0 type dummy && ip link set dummy0 up; }
ip link set dummy0 mtu 9000
ip addr add 10.0.0.1/24 dev dummy0
/usr/bin/rdma link add rxe0 type rxe netdev dummy0
ls /sys/class/infiniband/ /dev/infiniband
export CASCADE_TEST_VERBS="$(cat /extent)" HOME=/tmp PATH=/bin:/usr/bin
echo "rdma-check: stage boot, with soft-RoCE"
worst=0
while read -r t run; do
	cd /tmp && /tests/$t -test.timeout 420s -test.v -test.run "$run" </dev/null
	rc=$?
	[ $rc -eq 0 ] || worst=$rc
	echo "rdma-check: $t | tests end with | $rc"
	echo "rdma-check: stage $t"
done </tests.list
/usr/bin/rdma resource show | sed 's/^[0-9]*: /rdma-check: kernel | resources left | /'
echo "rdma-check: end $worst"
poweroff -f
